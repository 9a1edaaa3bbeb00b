"""From JSON to the values of `models`, and back. Pure: no input, no output.

New members go to ``extra``, null stands for a member that is not there, and an answer without a member that
has no default is an `UnreadableAnswerError`.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, TypeVar

from rlstm_client import models
from rlstm_client.errors import UnreadableAnswerError

T = TypeVar("T")
Reader = Callable[[Any], Any]


def score_result(data: Any) -> models.ScoreResult:
    """Read the answer of ``POST /score``."""
    return _read(models.ScoreResult, data, items=_each(_scored_item), adaptation=_adaptation)


def generation(data: Any) -> models.Generation:
    """Read the answer of a ``generate`` route."""
    return _read(models.Generation, data, usage=_object, choices=_each(_reader(models.Choice)))


def session_info(data: Any) -> models.SessionInfo:
    """Read what a session route tells of a session."""
    return _read(
        models.SessionInfo,
        data,
        totals=_reader(models.SessionTotals),
        adaptation=_adaptation,
        metadata=_object,
        forked_from=_reader(models.Ancestor),
        append=append_result,
    )


def snapshot(data: Any) -> models.Snapshot:
    """Read what is told of a named snapshot."""
    return _read(models.Snapshot, data, totals=_reader(models.SessionTotals))


def snapshots(data: Any) -> tuple[models.Snapshot, ...]:
    """Read the answer of ``GET …/snapshots``."""
    return _each(snapshot)(_object(data).get("snapshots"))


def session_page(data: Any) -> models.SessionPage:
    """Read the answer of ``GET /sessions``."""
    return _read(models.SessionPage, data, sessions=_each(session_info))


def append_result(data: Any) -> models.AppendResult:
    """Read the answer of ``POST …/append``."""
    return _read(models.AppendResult, data, totals=_reader(models.Totals), guards=_object)


def ranking(data: Any) -> models.Ranking:
    """Read the answer of ``POST …/score``."""
    return _read(models.Ranking, data, candidates=_each(_reader(models.Candidate)))


def health(data: Any) -> models.Health:
    """Read the answer of a health route."""
    return _read(models.Health, data)


def server_info(data: Any) -> models.ServerInfo:
    """Read the answer of ``GET /info``."""
    return _read(
        models.ServerInfo, data, models=_each(_object), adaptation=_object, limits=_object, defaults=_object
    )


def token_ids(data: Any) -> tuple[int, ...]:
    """Read the answer of ``POST /tokenize``."""
    return tuple(_array(_object(data).get("tokens")))


def token_text(data: Any) -> str:
    """Read the answer of ``POST /detokenize``."""
    text = _object(data).get("prompt")
    if not isinstance(text, str):
        raise UnreadableAnswerError("the answer is not the text it should be", applied="unknown")
    return text


def tokenizer_info(data: Any) -> models.TokenizerInfo:
    """Read the answer of ``GET /tokenizer_info``."""
    return _read(models.TokenizerInfo, data)


def token_event(data: Any) -> models.TokenEvent:
    """Read the data of a ``token`` event."""
    return _read(models.TokenEvent, data)


def end_event(data: Any) -> models.EndEvent:
    """Read the data of an ``end`` event."""
    return _read(models.EndEvent, data, usage=_object)


def to_json(value: Any) -> Any:
    """Turn a value of `models` back into what `json` can write, without members that say nothing."""
    if is_dataclass(value) and not isinstance(value, type):
        named = {f.name: getattr(value, f.name) for f in fields(value) if f.name != "extra"}
        return to_json({**named, **getattr(value, "extra", {})})
    if isinstance(value, Mapping):
        return {name: to_json(member) for name, member in value.items() if member not in (None, (), {})}
    if isinstance(value, list | tuple):
        return [to_json(member) for member in value]
    return value


def _adaptation(data: Any) -> models.Adaptation:
    return _read(models.Adaptation, data)


def _scored_item(data: Any) -> models.ScoredItem:
    return _read(
        models.ScoredItem,
        data,
        totals=_reader(models.Totals),
        top=_reader(models.Alternatives),
        words=_each(_reader(models.WordScore)),
        guards=_object,
    )


def _read(cls: Callable[..., T], data: Any, **readers: Reader) -> T:
    known: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    names = {f.name for f in _fields(cls)} - {"extra"}
    for name, value in _object(data).items():
        if name not in names:
            extra[name] = value
        elif value is not None:
            known[name] = readers.get(name, _plain)(value)
    if missing := sorted(_required(cls) - known.keys()):
        raise UnreadableAnswerError(f"the answer lacks {', '.join(missing)}", applied="unknown")
    return cls(**known, extra=extra)


def _fields(cls: Any) -> tuple[Field[Any], ...]:
    return fields(cls)


def _required(cls: Any) -> set[str]:
    return {f.name for f in _fields(cls) if f.default is MISSING and f.default_factory is MISSING}


def _reader(cls: Callable[..., T]) -> Callable[[Any], T]:
    return lambda data: _read(cls, data)


def _each(reader: Callable[[Any], T]) -> Callable[[Any], tuple[T, ...]]:
    return lambda data: tuple(reader(member) for member in _array(data))


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UnreadableAnswerError("the answer is not the JSON object it should be", applied="unknown")
    return value


def _array(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise UnreadableAnswerError("the answer is not the JSON array it should be", applied="unknown")
    return value
