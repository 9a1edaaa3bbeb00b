# Written by unasync.py from _async/__init__.py. Do not edit.
"""The blocking client. It is written from `_sync` by ``clients/python/unasync.py``."""
