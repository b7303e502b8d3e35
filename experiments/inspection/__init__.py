"""What gradients look like, layer by layer."""
