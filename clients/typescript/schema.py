"""Writes `src/schema.ts`: the types and the table of operations of the TypeScript client.

    .venv/bin/python clients/typescript/schema.py

Both come from the server's OpenAPI document, names and descriptions included, so that the compiler finds what
client and server do not agree on. A test fails while the file is not what this program would write. The
OpenAI-compatible routes are left out: OpenAI's own package is their client.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parent / "src" / "schema.ts"
ELSEWHERE = "/v1/"
"""What begins like this is OpenAI's interface."""

JSON, EVENTS, OCTETS, TEXT = (
    "application/json",
    "text/event-stream",
    "application/octet-stream",
    "text/plain",
)
KINDS = {JSON: "json", OCTETS: "octets", TEXT: "text"}
HEAD = "// Written by schema.py from the server's OpenAPI document. Do not edit.\n"

Schema = Mapping[str, Any]


def render(document: Schema) -> str:
    """Return the module for a document."""
    operations = list(_operations(document))
    used = _used([_said(operation) for _, operation in operations], document["components"]["schemas"])
    parts = [HEAD]
    parts += [_declaration(_name(ref), schema) for ref, schema in sorted(used.items())]
    parts += [_operation_types(operations), _operation_table(operations)]
    return "\n".join(parts)


def _operations(document: Schema) -> Iterator[tuple[str, Schema]]:
    for path, methods in document["paths"].items():
        if not path.startswith(ELSEWHERE):
            for method, operation in methods.items():
                yield f"{method.upper()} {path}", operation


def _said(operation: Schema) -> object:
    """Return what an operation takes and answers, without its refusals, which all are of one shape."""
    return [operation.get(part) for part in ("parameters", "requestBody", "x-frames")] + [_answer(operation)]


def _used(roots: object, schemas: Mapping[str, Schema]) -> dict[str, Schema]:
    """Return the schemas that are named somewhere in the roots, or in one of these."""
    used: dict[str, Schema] = {}
    waiting = list(_references(roots))
    while waiting:
        ref = waiting.pop()
        if ref not in used:
            used[ref] = schemas[ref]
            waiting += _references(schemas[ref])
    if len({_name(ref) for ref in used}) < len(used):
        raise ValueError("two schemas have one name")
    return used


def _references(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        if "$ref" in value:
            yield str(value["$ref"]).rsplit("/", 1)[-1]
        for member in value.values():
            yield from _references(member)
    elif isinstance(value, list):
        for member in value:
            yield from _references(member)


def _name(ref: str) -> str:
    """Return the name of a class. Two of one name in different modules are told apart by their modules."""
    return ref.rsplit("__", 1)[-1]


def _declaration(name: str, schema: Schema) -> str:
    comment = _comment(schema, "")
    if schema.get("type") == "object" and "properties" in schema:
        return f"{comment}export interface {name} {_object(schema, '')}\n"
    return f"{comment}export type {name} = {_type(schema, '')};\n"


def _object(schema: Schema, indent: str) -> str:
    needed = schema.get("required", ())
    inner = indent + "  "
    lines = [
        f"{_comment(member, inner)}{inner}readonly {name if name in needed else name + '?'}: "
        f"{_type(member, inner)};\n"
        for name, member in schema["properties"].items()
    ]
    return "{\n" + "".join(lines) + indent + "}"


def _type(schema: Schema, indent: str) -> str:
    """Write a schema as a type. A keyword that has no form here is a fault of this program."""
    if "$ref" in schema:
        return _name(str(schema["$ref"]).rsplit("/", 1)[-1])
    if "enum" in schema or "const" in schema:
        return " | ".join(json.dumps(value) for value in schema.get("enum", [schema.get("const")]))
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            return " | ".join(dict.fromkeys(_type(one, indent) for one in schema[keyword]))
    match schema.get("type"):
        case "string" if schema.get("format") == "binary":
            return "Blob"
        case "string" | "boolean" | "null" as plain:
            return str(plain)
        case "integer" | "number":
            return "number"
        case "array":
            return f"readonly {_grouped(_type(schema['items'], indent))}[]"
        case "object" if "properties" in schema:
            return _object(schema, indent)
        case "object":
            values = schema.get("additionalProperties", {})
            of = _type(values, indent) if isinstance(values, dict) else "unknown"
            return f"{{ readonly [name: string]: {of} }}"
        case None:
            return "unknown"
    raise ValueError(f"no type for {schema}")


def _grouped(of: str) -> str:
    return f"({of})" if re.search(r"[ |]", of) else of


def _comment(schema: Schema, indent: str) -> str:
    said = " ".join(str(schema.get("description", "")).split())
    if "default" in schema and schema["default"] is not None:
        said += f"{' ' if said else ''}Default: {json.dumps(schema['default'])}."
    return f"{indent}/** {said} */\n" if said else ""


def _operation_types(operations: Iterable[tuple[str, Schema]]) -> str:
    return (
        "/** What each operation takes and answers. */\nexport interface Operations {\n"
        + "".join(_operation_type(name, operation) for name, operation in operations)
        + "}\n"
    )


def _operation_type(name: str, operation: Schema) -> str:
    said = " ".join(operation.get("description", operation.get("summary", "")).split())
    takes = {
        "properties": {p["name"]: p["schema"] | _told(p) for p in _parameters(operation, "path", "query")},
        "required": [p["name"] for p in _parameters(operation, "path", "query") if p.get("required")],
    }
    headers = [json.dumps(parameter["name"]) for parameter in _parameters(operation, "header")]
    inner = "    "
    lines = [
        f"parameters: {_object(takes, inner) if takes['properties'] else 'object'};",
        f"headers: {' | '.join(headers) or 'never'};",
        f"body: {_body_type(operation)};",
        f"answer: {_answer_type(operation)};",
        f"event: {_event_type(operation)};",
    ]
    comment = f"  /** {said} */\n" if said else ""
    return f"{comment}  {json.dumps(name)}: {{\n" + "".join(f"{inner}{line}\n" for line in lines) + "  };\n"


def _told(parameter: Schema) -> Schema:
    return {"description": parameter["description"]} if "description" in parameter else {}


def _parameters(operation: Schema, *places: str) -> list[Schema]:
    return [parameter for parameter in operation.get("parameters", ()) if parameter["in"] in places]


def _body_type(operation: Schema) -> str:
    content = operation.get("requestBody", {}).get("content", {})
    if OCTETS in content:
        return "{ readonly data: Blob }"
    return _type(content[JSON]["schema"], "    ") if JSON in content else "object"


def _answer(operation: Schema) -> Mapping[str, Schema]:
    """Return what a success looks like, by media type; nothing where the answer is empty."""
    contents = [
        response.get("content", {}) for status, response in operation["responses"].items() if status < "3"
    ]
    return contents[0] if contents else {}


def _answer_type(operation: Schema) -> str:
    content = _answer(operation)
    kind = next((media_type for media_type in KINDS if media_type in content), None)
    return _type(content[kind]["schema"], "    ") if kind else "undefined"


def _event_type(operation: Schema) -> str:
    """Write the events of a stream as one union that `event` tells apart."""
    stream = _answer(operation).get(EVENTS)
    if stream is None:
        return "never"
    events = [one["properties"] for one in stream["itemSchema"]["oneOf"]]
    names = [json.dumps(one["event"]["const"]) for one in events]
    data = [_type(one["data"]["contentSchema"], "") for one in events]
    return " | ".join(
        f"({{ readonly event: {name} }} & {members})" for name, members in zip(names, data, strict=True)
    )


def _operation_table(operations: Iterable[tuple[str, Schema]]) -> str:
    return (
        "/** How each operation is sent: its query, its headers, and the form of body and answer. */\n"
        "export const OPERATIONS = {\n"
        + "".join(f"  {json.dumps(name)}: {_row(operation)},\n" for name, operation in operations)
        + "} as const satisfies { readonly [name in keyof Operations]: object };\n"
    )


def _row(operation: Schema) -> str:
    body = operation.get("requestBody", {}).get("content", {})
    answer = _answer(operation)
    row = {
        "query": [parameter["name"] for parameter in _parameters(operation, "query")],
        "headers": [parameter["name"] for parameter in _parameters(operation, "header")],
        "body": next((kind for media_type, kind in KINDS.items() if media_type in body), "none"),
        "answer": next((kind for media_type, kind in KINDS.items() if media_type in answer), "none"),
    }
    return "{ " + ", ".join(f"{name}: {json.dumps(value)}" for name, value in row.items()) + " }"


def document() -> Schema:
    """Return the document of this checkout's server."""
    from rlstm_server.app import create_app
    from rlstm_server.settings import Settings

    return create_app(Settings()).openapi()


if __name__ == "__main__":
    TARGET.write_text(render(document()), "utf-8")
