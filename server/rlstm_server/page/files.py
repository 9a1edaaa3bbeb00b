"""The page's files by the path that serves each: whoever asks for another path has asked for nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import PurePosixPath
from types import MappingProxyType

INDEX = "index.html"
PREFIX = "/page/"
ETAG_DIGITS = 32
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, kw_only=True)
class PageFile:
    """A file as it is sent. `etag` is of its content: a browser that has it is not sent it again."""

    content: bytes
    media_type: str
    etag: str


@cache
def page_files() -> Mapping[str, PageFile]:
    """Read every file of the page, once; the keys are paths of URLs, `/` among them."""
    found = {}
    for entry in files(__package__).joinpath("static").iterdir():
        content = entry.read_bytes()
        found["/" if entry.name == INDEX else PREFIX + entry.name] = PageFile(
            content=content,
            media_type=MEDIA_TYPES[PurePosixPath(entry.name).suffix],
            etag=f'"{hashlib.sha256(content).hexdigest()[:ETAG_DIGITS]}"',
        )
    return MappingProxyType(found)
