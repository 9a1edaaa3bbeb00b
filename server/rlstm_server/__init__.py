"""The server: sessions whose fast weights follow their stream, over HTTP."""
