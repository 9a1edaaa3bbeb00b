"""The engine: sessions, their fast weights, and the one thread that computes."""
