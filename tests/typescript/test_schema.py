"""What the TypeScript client knows of the server's interface is what the server's document says."""

import json
from pathlib import Path

import pytest

CLIENT = Path(__file__).parents[2] / "clients/typescript"


@pytest.mark.node
def test_the_file_is_what_the_document_says(schema, document, programs):
    """When this fails, run clients/typescript/schema.py and read what changed."""
    command = ("node", str(programs / "openapi-typescript/bin/cli.js"))
    assert schema.TARGET.read_text("utf-8") == schema.render(document, command)


def test_openais_routes_and_refusals_are_left_out(schema, document):
    """Their client is OpenAI's own package; a refusal has one shape. Everything else is there."""
    left = schema.document(document)
    kept = {path for path in document["paths"] if not path.startswith("/v1/")}
    answers = [o["responses"] for methods in left["paths"].values() for o in methods.values()]

    assert set(left["paths"]) == kept != set(document["paths"])
    assert all(status < "3" for responses in answers for status in responses)
    assert "AppendAnswer" in left["components"]["schemas"]


def test_the_package_needs_nothing_and_names_no_registry():
    """No library at run time; compiler and schema writer alone to build; no lock file with addresses."""
    package = json.loads((CLIENT / "package.json").read_text())
    assert set(package["devDependencies"]) == {"openapi-typescript", "typescript"}
    assert "dependencies" not in package
    assert not (CLIENT / "package-lock.json").exists()


@pytest.mark.parametrize("path", sorted((CLIENT / "src").glob("*.ts")), ids=lambda path: path.name)
def test_the_source_runs_in_browsers_too(path):
    """It imports its own modules only, and names nothing that is Node's."""
    source = path.read_text("utf-8")
    imported = [line.rsplit('"', 2)[1] for line in source.splitlines() if line.endswith('.js";')]
    assert all(name.startswith("./") for name in imported)
    assert not [word for word in ("node:", "require(", "process.", "Buffer.") if word in source]
