"""Measurements of speed and quality, run as `python -m benchmarks.NAME` from a checkout."""
