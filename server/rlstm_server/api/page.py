"""The page: a live view of what a session finds surprising, and of what learning saves.

Its files are open, as they hold no data: what they show they ask for with the key that a user gives them.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from rlstm_server.errors import NotFound
from rlstm_server.page.files import PREFIX, page_files

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


async def send(request: Request) -> Response:
    """Send a file of the page. The path is a key of a table and is never opened."""
    found = page_files().get(request.scope["path"])
    if found is None:
        raise NotFound("there is no such route")
    headers = HEADERS | {"etag": found.etag}
    if found.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(found.content, media_type=found.media_type, headers=headers)


def router() -> APIRouter:
    """Build the routes of this module."""
    page_files()  # read now, so that no request waits for the disk
    routes = APIRouter(tags=["page"])
    for path in ("/", f"{PREFIX}{{file}}"):
        for method in ("GET", "HEAD"):
            routes.add_api_route(path, send, methods=[method], include_in_schema=False)
    return routes
