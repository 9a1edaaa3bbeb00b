"""The asyncio client. `_sync`, the blocking one, is written from it by ``clients/python/unasync.py``."""
