"""Reference methods: no protection, all data at once, and one network per task."""
