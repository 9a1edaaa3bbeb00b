"""Writes `src/schema.ts`, the types of the TypeScript client, from the server's OpenAPI document.

    python clients/typescript/schema.py    needs npx, which fetches openapi-typescript

`make node` checks that the file is what this writes. The OpenAI-compatible routes are left out, since
OpenAI's own package is their client, and so are refusals, which all are of one shape.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TARGET = HERE / "src" / "schema.ts"
OPTIONS = ("--immutable", "--root-types", "--root-types-no-schema-prefix", "--default-non-nullable=false")
ELSEWHERE = "/v1/"


def document(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of the server's document that this client is for."""
    paths = {
        path: {method: _successes(operation) for method, operation in methods.items()}
        for path, methods in whole["paths"].items()
        if not path.startswith(ELSEWHERE)
    }
    schemas, used = whole["components"]["schemas"], set[str]()
    waiting = list(_references(paths))
    while waiting:
        name = waiting.pop()
        if name not in used:
            used.add(name)
            waiting += _references(schemas[name])
    return {
        "openapi": whole["openapi"],
        "info": whole["info"],
        "paths": paths,
        "components": {"schemas": {name: schemas[name] for name in sorted(used)}},
    }


def _successes(operation: Mapping[str, Any]) -> dict[str, Any]:
    responses = {status: answer for status, answer in operation["responses"].items() if status < "3"}
    return {**operation, "responses": responses}


def _references(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        if "$ref" in value:
            yield str(value["$ref"]).rsplit("/", 1)[-1]
        value = list(value.values())
    if isinstance(value, list):
        for member in value:
            yield from _references(member)


def render(whole: Mapping[str, Any], command: tuple[str, ...]) -> str:
    """Return the module for the server's document, by this command of openapi-typescript."""
    done = subprocess.run(  # noqa: S603 - the generator that package.json names
        [*command, "/dev/stdin", *OPTIONS],
        input=json.dumps(document(whole)),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


if __name__ == "__main__":
    from rlstm_server.app import create_app
    from rlstm_server.settings import Settings

    version = json.loads((HERE / "package.json").read_text())["devDependencies"]["openapi-typescript"]
    TARGET.write_text(
        render(create_app(Settings()).openapi(), ("npx", "--yes", f"openapi-typescript@{version}"))
    )
    sys.stdout.write(f"{TARGET}\n")
