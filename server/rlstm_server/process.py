"""What belongs to the whole process of a server: its socket, its open files, and how a crash is told."""

from __future__ import annotations

import errno
import faulthandler
import socket
import sys
from importlib.util import find_spec
from typing import Final

from rlstm_server.engine.worker import SWITCH_SECONDS
from rlstm_server.errors import StartupError
from rlstm_server.settings import Settings

_HAS_LIMITS: Final = find_spec("resource") is not None  # Windows has none
if _HAS_LIMITS:
    import resource

OTHER_FILES: Final = 256
"""Open files that are no connections of clients."""

UNSENT_BYTES: Final = 16_384
"""What the system holds of an answer before it is sent, apart from what is on its way."""


def prepare(settings: Settings) -> None:
    """Set what belongs to the whole process, and to the store that it starts. Raises StartupError.

    A crash is told by its places alone: a core file, or values of variables, could hold anybody's text.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)
    needed = needed_files(settings)
    if not _HAS_LIMITS:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and needed > files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))


def needed_files(settings: Settings) -> int:
    """Give how many open files its connections need. Raises StartupError where it may not have so many."""
    needed = settings.limits.connections + OTHER_FILES
    if not _HAS_LIMITS:
        return needed
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY and needed > most:
        raise StartupError(
            f"RLSTM_LIMITS__CONNECTIONS: {settings.limits.connections:,} connections need {needed:,} open"
            f" files, and this process may have {most:,}"
        )
    return needed


def bound_socket(settings: Settings) -> socket.socket:
    """Bind the address. Raises StartupError."""
    host, port = settings.host, settings.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise StartupError(f"RLSTM_HOST: {host} is no address of this machine: {error.strerror}") from None
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        # Connections inherit it: a reader who takes nothing is noticed before megabytes pile up for him.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise StartupError(_why_not_bound(error, host, port)) from None
    return bound


def _why_not_bound(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use: choose another with --port, or --port 0 for a free one"
    return f"cannot bind port {port} on {host}: {error.strerror}"
