"""Parts of `Preserver`: layers and their inputs, recording, products on the smaller side, hooks."""
