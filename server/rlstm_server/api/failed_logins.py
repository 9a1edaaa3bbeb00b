"""Wrong keys, counted by the address they come from, so that nobody can try many.

An address that has shown too many waits, and so do right keys that it never used before: a guess that fits
must not stand out. Keys that it did use go on, so that whoever shares an address with a guesser is served.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from typing import Final

from rlstm_server.engine.quotas import TokenBucket

ADDRESSES: Final = 4_096
"""As many are remembered, the latest. Whoever has more may try more: keys must be too long to be guessed."""

ELSEWHERE: Final = "elsewhere"
"""Stands for everything that is no address: it could be anything, as often as its sender likes."""

PER_SECOND: Final = 1.0
IPV6_PREFIX: Final = 64
"""Bits of an IPv6 address that tell one caller from another: the rest he may choose himself."""


class FailedLogins:
    """`burst` wrong keys at once are allowed to an address, and one more a second."""

    def __init__(self, burst: int) -> None:
        self._burst = burst
        self._addresses: OrderedDict[str, _Address] = OrderedDict()

    def failed(self, address: str) -> None:
        """Count a wrong key. Raises RateLimited when there were too many."""
        self._of(address).wrong.take()

    def succeeded(self, address: str, key_id: str) -> None:
        """Remember the key of this address. Raises RateLimited when it is new amid too many wrong ones."""
        seen = self._of(address)
        if key_id not in seen.keys:
            seen.wrong.check()
            seen.keys.add(key_id)

    def _of(self, address: str) -> _Address:
        caller = caller_of(address)
        found = self._addresses.setdefault(caller, _Address(self._burst))
        self._addresses.move_to_end(caller)
        if len(self._addresses) > ADDRESSES:
            self._addresses.popitem(last=False)
        return found


class _Address:
    def __init__(self, burst: int) -> None:
        self.wrong = TokenBucket("wrong keys from this address", PER_SECOND, burst=burst)
        self.keys: set[str] = set()


def caller_of(address: str) -> str:
    """Give the part of an address that its holder cannot choose."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return ELSEWHERE
    if parsed.version == 6 and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((parsed.packed, IPV6_PREFIX), strict=False))
    return str(parsed)
