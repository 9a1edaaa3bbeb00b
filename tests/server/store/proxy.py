"""A proxy that stands between stores and their server, and breaks what it is told to."""

import asyncio
from urllib.parse import urlsplit


class FaultyProxy:
    """Passes everything to the server at `upstream`. `faults` is what becomes of the next requests, in order.

    ``lost``    the server does not get it; the connection ends
    ``cut``     the server gets it and answers; the answer is lost with the connection
    ``half``    as cut, after the first half of the answer
    ``vanish``  as cut, and nobody can connect again
    ``swallow`` the server gets it and answers; the answer is lost and the connection stays open

    `watch`, if it is set, is awaited before a request goes on.
    """

    def __init__(self, upstream):
        self._upstream = urlsplit(upstream)
        self.faults, self.requests, self.watch = [], 0, None
        self._tasks = set()

    async def __aenter__(self):
        """Listen on a free port of this machine."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        """Stop, whatever is open."""
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        try:
            if self._upstream.scheme == "unix":
                up = await asyncio.open_unix_connection(self._upstream.path)
            else:
                up = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
            try:
                await self._pass_on(reader, writer, *up)
            finally:
                up[1].close()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # whichever side left: the other is told by the end of its connection
        finally:
            writer.close()

    async def _pass_on(self, reader, writer, up_reader, up_writer):
        while request := await _message(reader):
            self.requests += 1
            if self.watch is not None:
                await self.watch()
            fault = self.faults.pop(0) if self.faults else "none"
            if fault == "lost":
                return
            up_writer.write(request)
            reply = await _message(up_reader)
            if fault == "vanish":
                self._server.close()
            if fault == "half":
                writer.write(reply[: len(reply) // 2])
            if fault in ("cut", "half", "vanish"):
                return
            if fault != "swallow":
                writer.write(reply)


async def _message(reader):
    """One request or reply to its end, in however many pieces it comes; nothing when the connection ends."""
    message = await reader.readline()
    kind, count = message[:1], message[1:].strip()
    if kind == b"$" and int(count) >= 0:
        message += await reader.readexactly(int(count) + 2)
    elif kind == b"*":
        message += b"".join([await _message(reader) for _ in range(int(count))])
    return message
