"""Rows that learn, in torch: the backend of a GPU, and the statistics that calibration measures."""
