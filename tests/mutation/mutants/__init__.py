"""Puts faults into the server, each of which a test must notice."""
