"""What all packages share: errors, checked values, names, seeds and files."""
