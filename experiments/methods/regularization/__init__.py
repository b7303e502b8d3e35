"""Methods that penalize changes of weights that old tasks need."""
