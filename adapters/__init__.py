"""Bridges from training frameworks to the core, one package per framework."""
