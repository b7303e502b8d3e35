"""The torch adapter."""
