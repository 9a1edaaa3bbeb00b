"""The page: a live view of what a session finds surprising, and of what learning saves.

Its files are open, as they hold no data: what they show they ask for with the key that a user gives them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import PurePosixPath
from types import MappingProxyType

from fastapi import APIRouter, Request, Response

from rlstm_server import page
from rlstm_server.errors import NotFound

INDEX = "index.html"
PREFIX = "/page/"
ETAG_DIGITS = 32
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self'",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    ),
    "cross-origin-opener-policy": "same-origin",
}
"""Kept by browsers, and asked for again each time: a server that was updated shows its own page."""


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
    for entry in files(page).joinpath("static").iterdir():
        content = entry.read_bytes()
        found["/" if entry.name == INDEX else PREFIX + entry.name] = PageFile(
            content=content,
            media_type=MEDIA_TYPES[PurePosixPath(entry.name).suffix],
            etag=f'"{hashlib.sha256(content).hexdigest()[:ETAG_DIGITS]}"',
        )
    return MappingProxyType(found)


page_files()  # read now, so that no request waits for the disk
routes = APIRouter(tags=["page"], include_in_schema=False)


@routes.api_route("/", methods=["GET", "HEAD"])
@routes.api_route(f"{PREFIX}{{file}}", methods=["GET", "HEAD"])
async def send(request: Request) -> Response:
    """Send a file of the page. The path is a key of a table and is never opened."""
    found = page_files().get(request.scope["path"])
    if found is None:
        raise NotFound("there is no such route")
    headers = HEADERS | {"etag": found.etag}
    if found.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(found.content, media_type=found.media_type, headers=headers)
