"""Faults of one connection: toxiproxy's toxics, and some worse."""

import asyncio


class Fault:
    """What happens to one connection from a request on; the dice say how much."""

    def __init__(self, dice):
        pass

    async def request(self, wire, data):
        """Bytes on their way to the store."""
        await wire.to_store(data)

    async def reply(self, wire, data):
        """Bytes on their way to the replica."""
        await wire.to_replica(data)

    async def hung_up(self, wire):
        """The replica closed the connection."""


class Latency(Fault):
    """Replies come late."""

    def __init__(self, dice):
        self._seconds = dice.uniform(0.01, 3.0)

    async def reply(self, wire, data):
        """Hold a reply back."""
        await asyncio.sleep(self._seconds)
        await wire.to_replica(data)


class Bandwidth(Fault):
    """Replies trickle, so many bytes a second."""

    def __init__(self, dice):
        self._rate = dice.choice([10, 100, 1_000, 10_000])

    async def reply(self, wire, data):
        """Give a reply bit by bit."""
        for start in range(0, len(data), size := max(1, self._rate // 20)):
            await wire.to_replica(data[start : start + size])
            await asyncio.sleep(size / self._rate)


class Slicer(Fault):
    """Requests and replies arrive in small pieces."""

    def __init__(self, dice):
        self._size = dice.randint(1, 40)

    async def request(self, wire, data):
        """Cut a request up."""
        await self._slices(wire.to_store, data)

    async def reply(self, wire, data):
        """Cut a reply up."""
        await self._slices(wire.to_replica, data)

    async def _slices(self, send, data):
        for start in range(0, len(data), self._size):
            await send(data[start : start + self._size])
            await asyncio.sleep(0.0005)


class LostReplies(Fault):
    """Requests arrive, replies do not; the connection stays open."""

    async def reply(self, wire, data):
        """Lose a reply."""


class BlackHole(LostReplies):
    """Nothing arrives, in either direction; the connection stays open."""

    async def request(self, wire, data):
        """Lose a request."""


class SlowClose(LostReplies):
    """Replies are lost, and what the replica closes stays open at the store for a while."""

    def __init__(self, dice):
        self._seconds = dice.uniform(0.5, 3.0)

    async def hung_up(self, wire):
        """Wait before the store is told."""
        await asyncio.sleep(self._seconds)


class LateRequest(Fault):
    """A request arrives long after its sender gave it up."""

    def __init__(self, dice):
        self._seconds = dice.uniform(1.0, 5.0)

    async def request(self, wire, data):
        """Hold a request back, and deliver it all the same."""
        await asyncio.sleep(self._seconds)
        await wire.to_store(data)

    async def hung_up(self, wire):
        """Leave the store the time to do what arrived."""
        await asyncio.sleep(1.0)


class LimitData(Fault):
    """The connection closes in the middle of a request."""

    def __init__(self, dice):
        self._share = dice.random()

    async def request(self, wire, data):
        """Deliver the beginning."""
        await wire.to_store(data[: int(self._share * len(data))])
        wire.close()


class ResetPeer(Fault):
    """The connection is reset before the request arrives."""

    async def request(self, wire, data):
        """Reset instead."""
        wire.reset()


class HalfReply(Fault):
    """The connection is reset in the middle of the reply."""

    def __init__(self, dice):
        self._share = dice.random()

    async def reply(self, wire, data):
        """Deliver the beginning."""
        await wire.to_replica(data[: int(self._share * len(data))])
        wire.reset()


class ResetAfterDelivery(Fault):
    """The request has done its work when the connection is reset: nobody hears of it."""

    async def reply(self, wire, data):
        """Reset instead."""
        wire.reset()


FAULTS = (
    Latency,
    Bandwidth,
    Slicer,
    BlackHole,
    LostReplies,
    LateRequest,
    SlowClose,
    LimitData,
    ResetPeer,
    HalfReply,
    ResetAfterDelivery,
)

HARMLESS = Fault(None)
