"""The engine: sessions, their fast weights, and the device thread that computes."""
