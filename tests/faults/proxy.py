"""A TCP proxy between replicas and the store that breaks connections (see `toxics`).

A fault is armed and strikes the next request that it is meant for; from then on its connection is at its
mercy. Other connections work, until they are struck themselves.
"""

import asyncio
import socket
import struct

from .toxics import HARMLESS

PIECE = 65_536
COMMIT = b"_commit"


class FaultProxy:
    """Listens on a free port of this machine and passes everything to the store's `port`, but for faults.

    `watch`, if it is set, is awaited with each request before that goes on.
    """

    def __init__(self, port):
        self.watch = None
        self._store_port = port
        self._armed = []
        self._wires = set()
        self._cut = False
        self.port = None

    @property
    def url(self):
        """Where replicas find the store."""
        return f"redis://127.0.0.1:{self.port}"

    async def __aenter__(self):
        """Listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        """Stop, whatever is open."""
        self._server.close()
        for wire in list(self._wires):
            wire.reset()
        await asyncio.gather(*(wire.task for wire in self._wires), return_exceptions=True)

    async def strike(self, fault, *, meant_for=b"", within_s=10.0):
        """Let a fault strike the next request that holds these bytes; wait until it has."""
        struck = asyncio.Event()
        entry = (fault, meant_for, struck)
        self._armed.append(entry)
        try:
            await asyncio.wait_for(struck.wait(), within_s)
        finally:
            if entry in self._armed:
                self._armed.remove(entry)

    async def cut(self, seconds):
        """Reset all connections, and refuse new ones for a while."""
        self._cut = True
        for wire in list(self._wires):
            wire.reset()
        await asyncio.sleep(seconds)
        self._cut = False

    def fault_for(self, data):
        """The armed fault that a request is struck by, or None."""
        for entry in self._armed:
            fault, meant_for, struck = entry
            if meant_for in data:
                self._armed.remove(entry)
                struck.set()
                return fault
        return None

    async def _accept(self, reader, writer):
        wire = _Wire(self, reader, writer)
        if self._cut:
            wire.reset()
            return
        wire.task = asyncio.current_task()
        self._wires.add(wire)
        try:
            await wire.run(self._store_port)
        finally:
            self._wires.discard(wire)


class _Wire:
    """One connection of a replica, and the store's end of it."""

    def __init__(self, proxy, reader, writer):
        self._proxy = proxy
        self._replica = (reader, writer)
        self._store = None
        self._fault = None
        self.task = None

    async def run(self, port):
        """Pass on until either side is done."""
        try:
            self._store = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            self.reset()
            return
        down = asyncio.create_task(self._pass_replies())
        try:
            await self._pass_requests()
            if self._fault is not None:
                await self._fault.hung_up(self)
        except OSError:
            pass
        finally:
            down.cancel()
            await asyncio.gather(down, return_exceptions=True)
            self.close()

    async def _pass_requests(self):
        while data := await self._replica[0].read(PIECE):
            if self._proxy.watch is not None:
                await self._proxy.watch(data)
            if self._fault is None:
                self._fault = self._proxy.fault_for(data)
            await (self._fault or HARMLESS).request(self, data)

    async def _pass_replies(self):
        try:
            while data := await self._store[0].read(PIECE):
                await (self._fault or HARMLESS).reply(self, data)
        finally:
            self._replica[1].close()

    async def to_store(self, data):
        """Send bytes to the store."""
        self._store[1].write(data)
        await self._store[1].drain()

    async def to_replica(self, data):
        """Send bytes to the replica."""
        self._replica[1].write(data)
        await self._replica[1].drain()

    def close(self):
        """Close both ends."""
        for _, writer in filter(None, (self._replica, self._store)):
            writer.close()

    def reset(self):
        """Close both ends, the replica's by a reset: it finds out at its next word."""
        transport = self._replica[1].transport
        if not transport.is_closing():
            linger = struct.pack("ii", 1, 0)
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        transport.abort()
        if self._store is not None:
            self._store[1].close()
