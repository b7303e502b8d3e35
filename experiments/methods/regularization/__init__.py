"""Methods that hold weights that old tasks need."""
