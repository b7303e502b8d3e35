"""Transforms: none is used here. array-api-compat's wrapper needs the module."""
