"""Benchmarks of training: speed of the cells, and what so many minutes on one device give."""
