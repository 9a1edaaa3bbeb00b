"""Benchmarks of this project, each run as `python -m benchmarks.NAME`: they are not part of the wheel."""
