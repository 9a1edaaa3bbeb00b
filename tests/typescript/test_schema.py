"""What the TypeScript client knows of the server's interface is what the server's document says."""

import copy
import importlib.util
import json
from pathlib import Path

import pytest

from rlstm_server.app import create_app
from rlstm_server.settings import Settings

CLIENT = Path(__file__).parents[2] / "clients/typescript"


@pytest.fixture(scope="module")
def schema():
    """Give the program that writes `schema.ts`, as a module."""
    spec = importlib.util.spec_from_file_location("schema", CLIENT / "schema.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def document(tiny_checkpoint):
    """Give the server's document."""
    return create_app(Settings(model=str(tiny_checkpoint))).openapi()


def test_the_file_is_what_the_document_says(schema, document):
    """When this fails, run clients/typescript/schema.py and read what changed."""
    assert schema.TARGET.read_text("utf-8") == schema.render(document)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["paths"].update({"/new": d["paths"]["/score"]}),
        lambda d: d["paths"]["/score"].update(put=d["paths"]["/score"]["post"]),
        lambda d: d["components"]["schemas"]["AppendRequest"]["properties"].update(new={"type": "integer"}),
        lambda d: d["components"]["schemas"]["AppendAnswer"]["properties"].pop("version"),
        lambda d: d["components"]["schemas"]["AppendAnswer"]["required"].remove("version"),
        lambda d: d["components"]["schemas"]["TokenEvent"]["properties"].update(new={"type": "string"}),
        lambda d: d["paths"]["/sessions"]["get"]["parameters"].pop(),
        lambda d: d["paths"]["/sessions"]["post"].update(parameters=[]),
    ],
)
def test_no_change_of_the_document_goes_unseen(schema, document, change):
    """A route, a method, a field, whether it must be there, a query, a header: each changes the file."""
    changed = copy.deepcopy(dict(document))
    change(changed)
    assert schema.render(changed) != schema.render(document)


def test_openais_routes_are_openais(schema, document):
    """Their client is OpenAI's own package."""
    changed = copy.deepcopy(dict(document))
    changed["paths"]["/v1/completions"] = changed["paths"]["/score"]
    assert schema.render(changed) == schema.render(document)


def test_a_form_that_is_not_known_is_not_passed_over(schema):
    """A keyword without a type would otherwise become one that takes anything."""
    with pytest.raises(ValueError, match="no type for"):
        schema._type({"type": "matrix"}, "")


def test_the_package_needs_nothing_and_names_no_registry():
    """No library at run time; the compiler alone to build; no lock file with addresses."""
    package = json.loads((CLIENT / "package.json").read_text())
    assert set(package["devDependencies"]) == {"typescript"}
    assert "dependencies" not in package
    assert not (CLIENT / "package-lock.json").exists()


@pytest.mark.parametrize("path", sorted((CLIENT / "src").glob("*.ts")), ids=lambda path: path.name)
def test_the_source_runs_in_browsers_too(path):
    """It imports its own modules only, and names nothing that is Node's."""
    source = path.read_text("utf-8")
    imported = [line.rsplit('"', 2)[1] for line in source.splitlines() if line.endswith('.js";')]
    assert all(name.startswith("./") for name in imported)
    assert not {"node:", "require(", "process.", "Buffer."} & {
        word for word in ("node:", "require(", "process.", "Buffer.") if word in source
    }
