"""Back to fast weights of zero: when a stream asks for it, and when an expert computes no number any more."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rlstm_model.adaptation import mixture
from rlstm_model.adaptation.adapted_state import AdaptedState, Cursor, NonFiniteState
from rlstm_model.adaptation.experts import Place, Predictions, Text
from rlstm_model.adaptation.learner import Learner
from rlstm_model.adaptation.mixture import MixtureState
from rlstm_model.adaptation.rows import Reading
from rlstm_model.state import State


def reset(learner: Learner, state: AdaptedState, *, fast_weights: bool, recurrent: bool) -> AdaptedState:
    """Forget what was learned, or the text read so far, or both. The position goes on.

    Nothing read before the reset is learned from after it. Without its recurrent state the unfinished
    segment cannot be read again: its tokens are dropped. Without its fast weights it is read again with
    the slow ones, and the experts count alike again.
    """
    if recurrent:
        now = learner.before_text(state.expert_config)
        state = replace(state, now=now, start=now, pending=(), pending_learn=())
    if fast_weights:
        state = restart(learner, state, [True] * len(state.expert_config.rates))
        unlearned = (False,) * len(state.pending)
        state = replace(state, mixture=learner.equal_weights(state.expert_config), pending_learn=unlearned)
    return state


def restart(
    learner: Learner, state: AdaptedState, rows: Sequence[bool], *, must_help: bool = False
) -> AdaptedState:
    """Zero fast weights for some of the rows that learn, and where these are then in the unfinished segment.

    Such an expert counts no more than the share gives back to one whose last token was impossible to it: its
    weight becomes 0 (adaptation: §4) and then that share, at once (:func:`mixture.drop`). A weight of exactly
    0 would be no state that a mixture can have, and could not be stored where no token follows. What the
    expert loses goes to the others, so that what is guaranteed against each of these still is.

    Raises NonFiniteState where the slow weights compute no number from the segment's start, and, with
    ``must_help``, where these rows have no fast weights that could be to blame.
    """
    chosen = torch.tensor([bool(row) for row in rows])
    delta_KP = state.delta_KP
    if must_help and (delta_KP is None or not bool(delta_KP[chosen].any(1).all())):
        raise NonFiniteState("the recurrent state or a slow weight is not finite")
    if delta_KP is not None:
        delta_KP = delta_KP.clone()
        delta_KP[chosen] = 0
    bad_steps = tuple(0 if row else bad for row, bad in zip(rows, state.bad_steps, strict=True))
    return replace(
        state,
        delta_KP=delta_KP if delta_KP is not None and bool(delta_KP.any()) else None,
        now=_reread(learner, state, chosen) if state.pending else state.now,
        mixture=_without(state.mixture, chosen),
        bad_steps=bad_steps,
    )


def _without(weights: MixtureState | None, chosen_K: Tensor) -> MixtureState | None:
    """The mixture after the chosen of the experts that learn have restarted; the static one is the first."""
    if weights is None:
        return None
    dropped_1K = torch.cat((torch.zeros(1, dtype=torch.bool), chosen_K))[None]
    return mixture.drop(weights, dropped_1K.to(weights.weights_NK.device))


def _reread(learner: Learner, state: AdaptedState, chosen: Tensor) -> Cursor:
    """Where all rows are, after some have read the pending tokens with the slow weights."""
    rows = torch.arange(state.expert_config.rows)[state.expert_config.learning][chosen]
    ids = (state.start.last, *state.pending[:-1])
    read = learner.rows.read([Reading(ids, state.start.state.rows(rows))])
    places = [Place(0, row) for row in range(len(rows))]
    text = Text(state.pending, places, experts=1, static=False, before=None, logprobs_only=True)
    (scored,) = Predictions.of([read.windows]).score([text])
    if any(scored.broken):
        raise NonFiniteState("the state at the segment's start is not finite")
    h, c = state.now.state.h.clone(), state.now.state.c.clone()
    h[:, rows], c[:, rows] = read.states[0]
    return Cursor(State(h, c), state.now.last)
