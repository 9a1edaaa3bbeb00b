"""A proxy that cuts connections: after so many bytes in either direction, with whatever is on its way."""

import socket
import threading
from contextlib import suppress
from itertools import count
from urllib.parse import urlsplit


class CuttingProxy:
    """Passes bytes on to the server at `url`; the n-th connection is cut after `lifetimes[n]` bytes."""

    def __init__(self, url, lifetimes):
        self._server = (urlsplit(url).hostname, urlsplit(url).port)
        self._lifetimes, self._numbers = lifetimes, count()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.cuts = 0
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self):
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                _Wire(self, client, server, self._lifetimes.get(next(self._numbers)))


class _Wire:
    def __init__(self, proxy, client, server, left):
        self._proxy, self._left, self._lock = proxy, left, threading.Lock()
        self._ends = (client, server)
        for source, target in (self._ends, self._ends[::-1]):
            threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source, target):
        with suppress(OSError):
            while data := source.recv(4096):
                if self._is_over(len(data)):
                    break
                target.sendall(data)
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()

    def _is_over(self, count):
        with self._lock:
            if self._left is None:
                return False
            alive, self._left = self._left > 0, self._left - count
            self._proxy.cuts += alive and self._left <= 0
            return self._left <= 0
