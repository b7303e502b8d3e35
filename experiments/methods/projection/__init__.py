"""Methods that project gradients or steps, and their control."""
