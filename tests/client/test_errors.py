"""The tree of errors."""

import re
from typing import Any

import pytest

from rlstm_client import errors
from rlstm_client._problems import error_classes
from rlstm_client.errors import APIError, RLSTMError, VersionMismatchError


def subclasses(root: type[Any]) -> list[type[Any]]:
    return [root, *(each for child in root.__subclasses__() for each in subclasses(child))]


def drawn() -> dict[str, tuple[str | None, str | None]]:
    """Read the drawing in the module's docstring: class -> parent and status, and its type."""
    tree, above = {}, []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^    ([│├└─ ]*)(\w+Error)(.*)$", line)
        if match:
            depth = len(match[1]) // 4
            above[depth:] = [match[2]]
            tree[match[2]] = (above[depth - 1] if depth else None, match[3])
    return tree


def test_the_drawing_is_the_tree() -> None:
    """Every class stands in the drawing, below its parent, and nothing else does."""
    tree = {name: parent for name, (parent, _) in drawn().items()}

    assert {c.__name__: c.__base__.__name__ for c in subclasses(RLSTMError) if c is not RLSTMError} == {
        name: parent for name, parent in tree.items() if parent
    }


def test_the_drawing_shows_status_and_type() -> None:
    """The drawing names the status where it is set, and the type where there is one."""
    for error_class in error_classes():
        note = drawn()[error_class.__name__][1] or ""
        if "status" in vars(error_class):
            assert str(error_class.status) in note
        if error_class.type:
            assert error_class.type in note.split()


def test_every_class_of_the_server_has_a_status() -> None:
    """No class without a status, and no type twice."""
    classes = [each for each in error_classes() if each is not APIError]
    types = [each.type for each in classes if each.type]

    assert [each for each in classes if each.status is None] == []
    assert len(types) == len(set(types))


def test_what_an_error_says() -> None:
    """The sentence of the server, then what a person needs to look it up."""
    error = APIError("it broke", status=500, applied="unknown", request_id="r1")

    assert str(error) == "it broke (500, applied: unknown, request r1)"
    assert str(errors.RequestError("no text")) == "no text"


@pytest.mark.parametrize(("facts", "version"), [({"version": 7}, 7), ({}, None), ({"version": "7"}, None)])
def test_the_current_version(facts: dict[str, Any], version: int | None) -> None:
    """A failed If-Match tells the version to go on from."""
    assert VersionMismatchError("moved", facts=facts).current_version == version
