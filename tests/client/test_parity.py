"""The two clients are one interface, written twice."""

import inspect
from typing import Any, get_overloads

import pytest

import rlstm_client
from rlstm_client import (
    async_client,
    async_connection,
    async_sessions,
    async_streaming,
    client,
    connection,
    sessions,
    streaming,
)

PAIRS = [
    (client.Client, async_client.AsyncClient),
    (connection.Connection, async_connection.AsyncConnection),
    (connection.EventStream, async_connection.AsyncEventStream),
    (streaming.TextStream, async_streaming.AsyncTextStream),
    (sessions.Session, async_sessions.AsyncSession),
    (sessions.Sessions, async_sessions.AsyncSessions),
]
NO_COROUTINES = {"__init__", "get", "__repr__", "append_stream", "list"}

STREAM = (async_sessions.AsyncSession, "stream")


def methods(cls: type[Any]) -> dict[str, Any]:
    return {
        name: member
        for name, member in vars(cls).items()
        if inspect.isfunction(member) and (not name.startswith("_") or name == "__init__")
    }


def shape(function: Any) -> list[tuple[str, Any, Any]]:
    """Name, kind and default of each parameter; the clocks of the two clients differ by nature."""
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, None if p.name == "sleep" else p.default) for p in parameters]


def returns(function: Any) -> list[Any]:
    return [inspect.signature(each).return_annotation for each in (function, *get_overloads(function))]


def as_blocking(annotation: Any) -> str:
    """Write an annotation of the asynchronous client as the blocking client has it."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return text.replace("async_", "").replace("Async", "").replace("collections.abc.", "").replace("'", "")


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS)
def test_the_same_methods(blocking: type[Any], asynchronous: type[Any]) -> None:
    """Every public method exists in both, with the same parameters in the same order."""
    assert {name: shape(f) for name, f in methods(blocking).items()} == {
        name: shape(f) for name, f in methods(asynchronous).items()
    }


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS)
def test_the_same_types(blocking: type[Any], asynchronous: type[Any]) -> None:
    """Every method returns the same type, overloads included, but for the word Async."""
    for name, function in methods(blocking).items():
        twin = methods(asynchronous)[name]
        for ours, theirs in zip(
            [function, *get_overloads(function)], [twin, *get_overloads(twin)], strict=True
        ):
            ours_returns = inspect.signature(ours).return_annotation
            theirs_returns = inspect.signature(theirs).return_annotation
            assert as_blocking(theirs_returns) == as_blocking(ours_returns), name


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS)
def test_the_same_words(blocking: type[Any], asynchronous: type[Any]) -> None:
    """Documentation does not drift apart."""
    for name, function in methods(blocking).items():
        assert methods(asynchronous)[name].__doc__ == function.__doc__


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS)
def test_what_waits_is_a_coroutine(blocking: type[Any], asynchronous: type[Any]) -> None:
    """Whatever talks to the server is awaited or iterated over asynchronously."""
    for name, function in methods(asynchronous).items():
        waits = name not in NO_COROUTINES and (asynchronous, name) != STREAM
        assert inspect.iscoroutinefunction(function) is waits, name


def test_the_exported_names() -> None:
    """``__all__`` is sorted and complete: every public class of the models, and nothing that is not there."""
    named = [name for name in rlstm_client.__all__ if getattr(rlstm_client, name) is not None]
    public = {
        name
        for name, value in vars(rlstm_client.models).items()
        if inspect.isclass(value) and value.__module__ == "rlstm_client.models"
    }

    assert sorted(named) == sorted(set(rlstm_client.__all__))
    assert public <= set(named)
    assert set(named) <= set(dir(rlstm_client))
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = rlstm_client.nothing_of_the_kind  # type: ignore[attr-defined]
