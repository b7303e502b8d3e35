"""Methods that train on stored samples."""
