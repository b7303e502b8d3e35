"""What the class-incremental methods share: exemplars, teachers, losses, outside data."""
