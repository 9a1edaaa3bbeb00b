"""What the site takes from the code as it is built: HTTP interface, settings, each command's help."""

from collections.abc import Iterator, Mapping
from typing import Any

from click.testing import CliRunner

from rlstm_client.cli.commands import COMMANDS, build
from rlstm_client.cli.session import app
from rlstm_server.app import create_app
from rlstm_server.settings import Settings

Json = Mapping[str, Any]

METHODS = ("get", "post", "put", "patch", "delete")


def on_page_markdown(markdown: str, **_: object) -> str:
    """Put generated text where a page asks for it; MkDocs calls this for every page."""
    for name, generated in {"http": http_interface, "commands": command_help, "settings": settings}.items():
        if f"<!-- {name} -->" in markdown:
            markdown = markdown.replace(f"<!-- {name} -->", "\n".join(generated()))
    return markdown


def http_interface() -> Iterator[str]:
    """Every operation of the OpenAPI document, then every shape that their bodies have."""
    document = create_app(Settings(durability="memory")).openapi()
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                yield from _operation(method, path, item[method])
    yield "## Shapes\n"
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield from _shape(name, schema)


def _operation(method: str, path: str, operation: Json) -> Iterator[str]:
    yield f"## `{method.upper()} {path}`\n"
    yield f"{operation.get('description') or operation.get('summary', '')}\n"
    if parameters := [each for each in operation.get("parameters", ()) if "name" in each]:
        rows = [
            (f"`{each['name']}`", each["in"], _type(each.get("schema", {})), _about(each))
            for each in parameters
        ]
        yield from _table(("parameter", "in", "type", "meaning"), rows)
    for kind, body in operation.get("requestBody", {}).get("content", {}).items():
        yield f"Body (`{kind}`): {_type(body.get('schema', {}))}\n"
    answers = [
        (f"`{status}`", _answer(answer), _about(answer)) for status, answer in operation["responses"].items()
    ]
    yield from _table(("status", "body", "meaning"), answers)


def _answer(answer: Json) -> str:
    bodies = answer.get("content", {}).items()
    return ", ".join(f"{_type(body.get('schema', {}))} (`{kind}`)" for kind, body in bodies)


def _shape(name: str, schema: Json) -> Iterator[str]:
    yield f"### {name}\n"
    if "description" in schema:
        yield f"{schema['description']}\n"
    if fields := schema.get("properties"):
        must = schema.get("required", ())
        rows = [
            (f"`{field}`", _type(each), "yes" if field in must else "", _default(each), _about(each))
            for field, each in fields.items()
        ]
        yield from _table(("field", "type", "required", "default", "meaning"), rows)
    else:
        yield f"{_type(schema)}\n"


def _type(schema: Json) -> str:
    """A type in a few words; a shape of its own is linked."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_type(option) for option in options))
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "anything"))


def _default(schema: Json) -> str:
    default = schema.get("default")
    told = ",".join(map(str, default)) if isinstance(default, list) else default
    return "" if told in (None, "") else f"`{told}`"


def _about(schema: Json) -> str:
    return " ".join(str(schema.get("description", "")).split())


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    yield _row(head)
    yield _row(("---",) * len(head))
    yield from map(_row, rows)
    yield ""


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def settings() -> Iterator[str]:
    """Every variable that a server reads, from the schema of its settings."""
    schema = Settings.model_json_schema()
    of_limits = schema["$defs"]["Limits"]["properties"]
    fields = {name: each for name, each in schema["properties"].items() if name != "limits"}
    fields |= {f"limits__{name}": each for name, each in of_limits.items()}
    rows = [(f"`RLSTM_{name.upper()}`", _default(each), _about(each)) for name, each in fields.items()]
    yield from _table(("variable", "default", "meaning"), rows)


def command_help() -> Iterator[str]:
    """What ``--help`` of every command says."""
    for command in COMMANDS:
        yield from _help(*command.path.split("."))
    for name in app.commands:
        yield from _help("session", name)


def _help(*words: str) -> Iterator[str]:
    said = CliRunner().invoke(build(), [*words, "--help"], prog_name="rlstm", terminal_width=100)
    if said.exit_code:
        raise RuntimeError(f"rlstm {' '.join(words)} --help: {said.output}")
    yield f"## rlstm {' '.join(words)}\n"
    yield f"```text\n{said.output.strip()}\n```\n"
