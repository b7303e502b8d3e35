"""What methods remember of old tasks: exemplars, their features, parts that play tasks."""
