"""The commands of `gradproj`, one module each."""
