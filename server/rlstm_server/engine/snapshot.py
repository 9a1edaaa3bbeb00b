"""A session's state, and the bytes that it is stored as.

    sealed value = seal(header length (4, little-endian) | header (JSON) | tensors (safetensors))

The header holds what is no tensor: the kind and size of fast weights, the evaluator's counters and pending
tokens, the watch over them, the sums over the session's life, and the place in its text. A state that was
stored and opened again gives the same scores, bit for bit. A new session's state follows from the header, so
a large one is stored without tensors: an *origin*. A state's digest is of header and tensors, not of the
bytes that it is stored as: these may be other ones with another version of a library.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from rlstm_model.adaptation.adapted_state import is_finite
from rlstm_model.adaptation.evaluator import AdaptedState, DynamicEvaluator, NonFiniteState, StateMismatch
from rlstm_model.adaptation.loss_guard import LossGuard
from rlstm_server.engine.models import Models
from rlstm_server.engine.served import ServedModel
from rlstm_server.engine.steps import Ask, Steps
from rlstm_server.engine.text import START, Place
from rlstm_server.errors import InvalidField, ModelMismatch, StateCorrupt
from rlstm_server.schemas import AdaptationChoice, SessionTotals
from rlstm_server.store.base import SessionKey
from rlstm_server.store.sealing import Seal, seal, unseal

INLINE_BYTES: Final = 256 << 10
"""A state of at most so many bytes is part of every commit; a larger one is rebuilt from base and log."""

PIECE_BYTES: Final = 8 << 20
"""So much of a state is looked at between two rounds: the whole of a large one would hold up everybody."""

_LENGTH_BYTES: Final = 4
_DIGEST_BYTES: Final = 32


@dataclass(frozen=True, kw_only=True, eq=False)
class SessionState:
    """Everything that a session's history has made of it.

    served      the model that it is of
    choice      how it learns, from its creation to its end
    watch       over a single expert that learns beside the static row; of no meaning for others
    norm_ratio  of the fast weights to the slow ones, when the state was last committed
    approx      whether other numerics had a part in it: scores agree with theirs, but not to the bit
    """

    served: ServedModel
    adapted: AdaptedState
    choice: AdaptationChoice
    totals: SessionTotals
    place: Place = START
    watch: LossGuard = field(default_factory=LossGuard)
    norm_ratio: float = 0.0
    approx: bool = False

    @classmethod
    def before_text(cls, served: ServedModel, choice: AdaptationChoice) -> "SessionState":
        """The state of a new session."""
        evaluator = served.evaluator(choice.kind, choice.num_fast_weights)
        return cls(
            served=served,
            adapted=evaluator.start(
                rate_scale=choice.rate_scale, static=choice.static, experts=choice.experts
            ),
            choice=choice,
            totals=SessionTotals(static_nats=0.0 if choice.static else None),
        )

    @property
    def evaluator(self) -> DynamicEvaluator:
        """What its fast weights belong to."""
        return self.served.evaluator(self.choice.kind, self.choice.num_fast_weights)

    def measured(self) -> "SessionState":
        """The same with the norm of its fast weights, as it is committed."""
        return replace(self, norm_ratio=self.served.norm_ratio(self.choice, self.adapted))

    @cached_property
    def header(self) -> bytes:
        """All that is no tensor, as JSON. Raises StateCorrupt for a sum that is not finite."""
        return _written(fields_of(self))

    @property
    def stored_bytes(self) -> int:
        """Bytes of header and tensors."""
        return len(self.header) + self.adapted.nbytes

    @property
    def is_inline(self) -> bool:
        """Whether it is small enough to be part of every commit."""
        return self.stored_bytes <= INLINE_BYTES


class Contents(NamedTuple):
    """What a state consists of: its model, all that is no tensor, and the tensors, which lie in memory.

    same_numerics  whether they were computed by the numbers that are computed here
    """

    served: ServedModel
    header: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    same_numerics: bool = True


class Snapshots:
    """Packs and opens the states of the models that are served."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def pack(self, key: SessionKey, version: int, state: SessionState) -> bytes:
        """Seal the state of `key` at `version`. Raises StateCorrupt for a value that is not finite."""
        return self.seal(key, version, contents_of(state))

    def open(self, key: SessionKey, version: int, value: bytes) -> SessionState:
        """The state that was packed. Raises StateCorrupt, ModelMismatch."""
        return self.restore(self.unseal(key, version, value))

    def origin(self, key: SessionKey, state: SessionState) -> bytes:
        """Seal a state that is new, without its tensors: they follow from the rest."""
        return _sealed(key, 0, Contents(state.served, {**fields_of(state), "origin": True}, {}))

    def is_new(self, state: SessionState) -> bool:
        """Whether nothing has happened to a state yet."""
        if state.adapted.delta_KP is not None:
            return False
        fresh = SessionState.before_text(state.served, state.choice)
        tensors, own = fresh.adapted.tensors(), state.adapted.tensors()
        return fields_of(state) == fields_of(fresh) and all(
            torch.equal(tensor, own[name]) for name, tensor in tensors.items()
        )

    # ---- what any thread may do: it takes as long as a large state has bytes -------------------------------

    def seal(self, key: SessionKey, version: int, contents: "Contents") -> bytes:
        """Seal what `key` consists of at `version`. Raises StateCorrupt for a value that is not finite."""
        if not all(is_finite(tensor) for tensor in contents.tensors.values()):
            raise StateCorrupt("the new state holds a value that is not finite")
        return _sealed(key, version, contents)

    def unseal(self, key: SessionKey, version: int, value: bytes) -> "Contents":
        """What was sealed for `key` at `version`. Raises StateCorrupt, ModelMismatch."""
        unsealed = unseal(value, key, version)
        seal = unsealed.seal
        served = self._models.with_identity(seal.fingerprint, seal.adaptation_fingerprint)
        payload = memoryview(unsealed.payload)
        start = _LENGTH_BYTES + int.from_bytes(payload[:_LENGTH_BYTES], "little")
        try:
            header = json.loads(bytes(payload[_LENGTH_BYTES:start]))
            tensors = load(bytes(payload[start:]))
        except (SafetensorError, ValueError, RecursionError) as error:
            raise StateCorrupt("the stored state cannot be read") from error
        return Contents(served, header, tensors, seal.numerics == served.numerics)

    # ---- the device thread's side -------------------------------------------------------------------------

    def restore(self, contents: "Contents") -> SessionState:
        """The state that consists of this, `approx` from now on if other numerics computed it.

        Raises StateCorrupt, ModelMismatch.
        """
        served, header = contents.served, contents.header
        try:
            evaluator = served.evaluator(header["kind"], header["num_fast_weights"])
            adapted, place = _adapted(evaluator, contents), header["place"]
            return SessionState(
                served=served,
                adapted=adapted,
                choice=AdaptationChoice.of(evaluator.config, adapted.expert_config, adapted.rate_scale),
                totals=SessionTotals(**header["totals"]),
                place=replace(Place(**place), unfinished=tuple(place["unfinished"])),
                watch=LossGuard(**header["watch"]),
                norm_ratio=header["norm_ratio"],
                approx=header["approx"] or not contents.same_numerics,
            )
        except InvalidField as error:
            raise ModelMismatch("the model has no rule for the session's kind of fast weights") from error
        except NonFiniteState as error:
            raise StateCorrupt("the stored state holds a value that is not finite") from error
        except (StateMismatch, ValueError, KeyError, TypeError) as error:
            raise StateCorrupt("the stored state cannot be read") from error


def _adapted(evaluator: DynamicEvaluator, contents: Contents) -> AdaptedState:
    fields = contents.header["adapted"]
    if contents.header.get("origin") is True:
        return evaluator.start(
            rate_scale=fields["rate_scale"], static=fields["static"], experts=fields["experts"]
        )
    tensors = {name: tensor.to(contents.served.device) for name, tensor in contents.tensors.items()}
    return evaluator.restore(tensors, fields)


def _sealed(key: SessionKey, version: int, contents: Contents) -> bytes:
    text, stored = _written(contents.header), save(dict(contents.tensors))
    payload = b"".join((len(text).to_bytes(_LENGTH_BYTES, "little"), text, stored))
    served = contents.served
    belongs = Seal.of(
        key,
        version,
        fingerprint=served.fingerprint,
        adaptation_fingerprint=served.adaptation_fingerprint or "",
        numerics=served.numerics,
    )
    return seal(belongs, payload)


def contents_of(state: SessionState) -> Contents:
    """What a state consists of; from a device it is fetched, so the device thread does it."""
    tensors = {name: tensor.contiguous().cpu() for name, tensor in state.adapted.tensors().items()}
    return Contents(state.served, fields_of(state), tensors)


def digest(state: SessionState) -> Steps[Any, str]:
    """The BLAKE2b of a state's header and tensors, a piece between two rounds.

    Raises StateCorrupt for a value that is not finite.
    """
    hashing = hashlib.blake2b(state.header, digest_size=_DIGEST_BYTES)
    done = 0
    for name, tensor in sorted(state.adapted.tensors().items()):
        hashing.update(json.dumps([name, str(tensor.dtype), [*tensor.shape]]).encode())
        for piece in pieces_of(tensor, PIECE_BYTES):
            if not is_finite(piece):
                raise StateCorrupt("the new state holds a value that is not finite")
            done += piece.nbytes
            hashing.update(piece.view(torch.uint8).numpy().data)
            if done >= PIECE_BYTES:
                done = 0
                yield Ask()
    return hashing.hexdigest()


def pieces_of(tensor: Tensor, size: int) -> Iterator[Tensor]:
    """The values of a tensor in their order, so many bytes at once, in memory: copies where they were not."""
    for piece in torch.split(tensor.detach().contiguous().view(-1), size // tensor.element_size()):
        yield piece.cpu()


def fields_of(state: SessionState) -> dict[str, Any]:
    """All that is no tensor."""
    return {
        "kind": state.choice.kind,
        "num_fast_weights": state.choice.num_fast_weights,
        "adapted": state.adapted.header(),
        "watch": asdict(state.watch),
        "norm_ratio": state.norm_ratio,
        "totals": asdict(state.totals),
        "place": asdict(state.place),
        "approx": state.approx,
    }


def _written(header: Mapping[str, Any]) -> bytes:
    """A header as JSON. Raises StateCorrupt for a number that is not finite."""
    try:
        return json.dumps(header, allow_nan=False).encode()
    except ValueError as error:
        raise StateCorrupt("the new state's sums are not finite") from error
