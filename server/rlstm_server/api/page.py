"""The page: a live view of what a session finds surprising, and of what learning saves.

Its files are open, as they hold no data: what they show they ask for with the key that a user gives them.
"""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter, Request, Response
from starlette.staticfiles import StaticFiles

from rlstm_server import page
from rlstm_server.errors import NotFound

INDEX = "index.html"
PREFIX = "/page/"
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


FOLDER = files(page).joinpath("static")
FILES = StaticFiles(directory=str(FOLDER))
PAGE = {"/" if file.name == INDEX else PREFIX + file.name: file.name for file in FOLDER.iterdir()}
"""The name of each file by its path in URLs."""

routes = APIRouter(tags=["page"], include_in_schema=False)


@routes.api_route("/", methods=["GET", "HEAD"])
@routes.api_route(f"{PREFIX}{{file}}", methods=["GET", "HEAD"])
async def send(request: Request) -> Response:
    """Send a file of the page, unless the browser has it already. The path is a key of a table."""
    name = PAGE.get(request.scope["path"])
    if name is None:
        raise NotFound("there is no such route")
    response = await FILES.get_response(name, request.scope)
    response.headers.update(HEADERS)
    return response
