"""Class-incremental methods: a teacher, exemplars and a loss of their own."""
