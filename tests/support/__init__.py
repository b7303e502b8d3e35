"""What several test modules share: array libraries, nasty matrices, named assertions."""
