"""Bounds of what can be reached: no protection, all data at once, one network per task."""
