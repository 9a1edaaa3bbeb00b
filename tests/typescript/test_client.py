"""The TypeScript client on Node: by itself, beside the Python client, and against a real server."""

import hashlib
import json
import random
import re
import subprocess
import time

import pytest
from tests.end_to_end.cuts import CuttingProxy
from tests.typescript import mirrored
from tests.typescript.conftest import CLIENT, HERE, NODE

pytestmark = pytest.mark.node

KEYS = {
    "KEY": ("the-key-of-one", {"tenant": "one", "scopes": ["score", "generate", "sessions", "admin"]}),
    "ADMIN": ("the-key-of-two", {"tenant": "two", "scopes": ["admin"]}),
    "SLOW": ("the-key-of-three", {"tenant": "three", "quotas": {"requests_per_second": 0.05}}),
}


@pytest.fixture(scope="module")
def url_and_keys(start, tmp_path_factory):
    """A server with keys, and room for few requests at once; gives what Node is told of it."""
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    digest = {name: hashlib.sha256(key.encode()).hexdigest() for name, (key, _) in KEYS.items()}
    path.write_text(json.dumps([{"sha256": digest[name], **record} for name, (_, record) in KEYS.items()]))
    with start(
        "--durability",
        "memory",
        RLSTM_API_KEYS_FILE=str(path),
        RLSTM_LIMITS__QUEUED_JOBS="8",
        RLSTM_LIMITS__PING_SECONDS="0.2",
    ) as server:
        assert server.url, server.errors()
        yield {"URL": server.url, **{name: key for name, (key, _) in KEYS.items()}}


def test_every_operation(node, schema, document, tmp_path):
    """Each has a method, which sends what the document says; what comes back is checked."""
    path = tmp_path / "openapi.json"
    path.write_text(json.dumps(schema.document(document)))
    assert node.test("operations.test.mjs", DOCUMENT=str(path)) >= 18


def test_streams_over_sockets_that_are_played(node):
    """What is sent when, how each end of a connection is named, and what ends a stream."""
    assert node.test("socket.test.mjs") >= 33


def test_it_computes_what_the_python_client_does(node, tmp_path):
    """Errors, repeats, cuts, sums and events are the same in both."""
    path = tmp_path / "cases.json"
    path.write_text(json.dumps(mirrored.cases()))
    assert node.test("mirror.test.mjs", CASES=str(path)) >= 12


@pytest.mark.parametrize("name", ["server.test.mjs", "network.test.mjs"])
def test_with_a_real_server(node, url_and_keys, name, capsys):
    """Every kind of call, every kind of refusal, and connections that break."""
    began = time.monotonic()
    passed = node.test(name, **url_and_keys)
    with capsys.disabled():
        print(f"\n{name}: {passed} tests of Node in {time.monotonic() - began:.1f} s")
    assert passed >= 14


def test_a_stream_to_a_real_server(node, url_and_keys, capsys):
    """Through a proxy that cuts connections after any byte in any direction, and without one."""
    cuts, draw = 20, random.Random(1)
    lifetimes = {number: draw.randint(600, 1_600) for number in range(cuts)}
    with CuttingProxy(url_and_keys["URL"], lifetimes) as proxy:
        node.test("stream.test.mjs", **url_and_keys, CUT=proxy.url, CHARACTERS="10000")
        made = proxy.cuts
    with capsys.disabled():
        print(f"\nstream.test.mjs: {made} cuts, every byte scored once")
    assert made == cuts


def test_the_types(compiler, node, tmp_path):
    """The compiler takes what is right, and refuses each line that is marked as wrong."""
    _installed(node, tmp_path)
    usage = tmp_path / "usage.ts"
    usage.write_text((HERE / "usage.ts").read_text())
    assert compiler(within=tmp_path) == (0, "")
    usage.write_text(usage.read_text().replace("@ts-expect-error", "no more"))
    status, said = compiler(within=tmp_path)
    assert status != 0
    assert said.count("error TS") == (HERE / "usage.ts").read_text().count("@ts-expect-error")


def test_its_page(compiler, node, url_and_keys, tmp_path):
    """What README.md shows compiles and does what it says, one snippet after the other."""
    _installed(node, tmp_path)
    page = (CLIENT / "README.md").read_text()
    code = "".join(re.findall(r"^```ts\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    address = f'"{url_and_keys["URL"]}", {{ apiKey: "{url_and_keys["KEY"]}" }}'
    (tmp_path / "page.ts").write_text(code.replace('"http://127.0.0.1:8000"', address))
    assert compiler("--noEmit", "false", within=tmp_path) == (0, "")
    done = subprocess.run(
        [*NODE, tmp_path / "page.js"], capture_output=True, text=True, timeout=60, check=True
    )
    first, *written, last = done.stdout.splitlines()
    assert all(float(figure) > 0 for figure in first.split())
    assert len(written) >= 40
    assert re.fullmatch(r"the session is at version \d+", last)


def _installed(node, folder):
    """Make a project that has the client as a package, and the compiler's options."""
    package = folder / "node_modules/rlstm-client"
    package.mkdir(parents=True)
    (package / "package.json").write_text((CLIENT / "package.json").read_text())
    (package / "dist").symlink_to(node.client)
    (folder / "package.json").write_text('{"type": "module"}')
    options = json.loads((CLIENT / "tsconfig.json").read_text())["compilerOptions"]
    kept = {name: options[name] for name in ("target", "lib", "module", "types", "strict")}
    (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": kept | {"noEmit": True}}))
