"""The page's files as they are served, and what they may not hold: all of it is checked without a browser."""

import re

import pytest

from rlstm_server.api.page import FOLDER, PAGE

FILES = {path: (FOLDER / name).read_text() for path, name in PAGE.items()}
INDEX = FILES["/"]
SCRIPTS = {path: text for path, text in FILES.items() if path.endswith(".js")}
STYLES = {path: text for path, text in FILES.items() if path.endswith(".css")}
TEXTS = {"/": INDEX, **SCRIPTS, **STYLES}
KINDS = {"/": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
SVG_NAMESPACE = "http://www.w3.org/2000/svg"

DANGEROUS = re.compile(
    r"\.(?:inner|outer)HTML\b|insertAdjacentHTML|document\.write|\beval\(|new Function|setHTMLUnsafe"
    r"|\.cssText\b|setAttribute\(\"(?:style|on)|localStorage|document\.cookie|\bimport\("
)


async def test_each_file_is_sent_as_it_is(client):
    """With its media type, a tag, and never from a cache that nobody asked about."""
    for path, text in FILES.items():
        answer = await client.get(path)
        assert (answer.status_code, answer.text) == (200, text)
        kind = KINDS[path[path.rfind(".") :] if "." in path else path]
        assert answer.headers["content-type"].split(";")[0] == kind
        assert (answer.headers["etag"] != "", answer.headers["cache-control"]) == (True, "no-cache")


async def test_the_policy_lets_nothing_else_in(client):
    """Scripts, styles and answers are this server's, on every file; nothing is inline, nobody frames it."""
    for path in PAGE:
        headers = (await client.get(path)).headers
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert policy.pop("require-trusted-types-for") == "'script'"
        own = {name for name, value in policy.items() if value == "'self'"}
        assert own == {"script-src", "style-src", "img-src", "connect-src"}
        none = {"default-src", "base-uri", "form-action", "frame-ancestors", "trusted-types"}
        assert {name for name, value in policy.items() if value == "'none'"} == none == policy.keys() - own
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


async def test_a_file_that_is_known_is_not_sent_again(client):
    """By the tag that came with it, alone or among others; another tag gets the file."""
    tag = (await client.get("/")).headers["etag"]
    for known in (tag, f'"other", W/{tag}'):
        answer = await client.get("/", headers={"if-none-match": known})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
    assert (await client.get("/", headers={"if-none-match": '"other"'})).status_code == 200


async def test_head_says_the_same_without_content(client):
    """Length and tag are those of the file."""
    got, head = await client.get("/"), await client.head("/")
    assert (head.status_code, head.content) == (200, b"")
    assert [head.headers[name] for name in ("etag", "content-length")] == [
        got.headers[name] for name in ("etag", "content-length")
    ]


async def test_nothing_else_is_sent(client):
    """A path that is not in the table is no route, whatever lies on the disk."""
    for path in ("/page/", "/page/index.html", "/page/..%2ffiles.py", "/page//main.js", "/page/main.js%00"):
        answer = await client.get(path)
        assert (answer.status_code, answer.json()["type"]) == (404, "urn:rlstm:problem:not_found")


def test_nothing_is_inline():
    """Neither scripts, nor handlers, nor styles: the policy would stop them anyway."""
    assert re.findall(r"<script(?![^>]*\bsrc=)", INDEX) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=|javascript:", INDEX) == []


@pytest.mark.parametrize("path", TEXTS)
def test_no_other_host_is_named(path):
    """Every address is relative; the name of SVG's elements is none."""
    assert re.findall(r"https?:|\burl\(|[\"'(]//|@import", TEXTS[path].replace(SVG_NAMESPACE, "")) == []


@pytest.mark.parametrize("path", SCRIPTS)
def test_data_never_becomes_markup_or_script(path):
    """And nothing outlives the tab."""
    assert DANGEROUS.findall(SCRIPTS[path]) == []


def test_every_file_is_used_and_every_used_file_is_there():
    """Modules are named in the page, so that they load side by side; no file is left over."""
    named = {f"/{name}" for name in re.findall(r'(?:src|href)="(page/[^"]+)"', INDEX)}
    imported = {
        f"/page/{name}" for text in SCRIPTS.values() for name in re.findall(r'from "\./([^"]+)"', text)
    }
    assert named == PAGE.keys() - {"/"}
    assert imported == SCRIPTS.keys() - {"/page/main.js"}


def test_every_element_that_scripts_ask_for_is_there():
    """By its id, once."""
    ids = re.findall(r'\sid="([^"]+)"', INDEX)
    asked = {name for text in SCRIPTS.values() for name in re.findall(r'byId\("([^"]+)"\)', text)}
    assert len(ids) == len(set(ids))
    assert asked - set(ids) == set()
    assert len(asked) > 40
