"""From a configuration to a result: presets, training, checkpoints, records, grids."""
