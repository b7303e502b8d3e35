"""Benchmarks, baselines, runs and reports."""
