"""Scores of many streams' rows together: the mixtures of their experts, and frozen baselines beside them.

All texts of a batch are scored at once: their tokens lie one after the other, and every token has the
places of the distributions that predicted it among those of all passes. A token's scores have the bits that
they have alone: what is reduced, is reduced over a row of its own.
Shape suffixes: M distributions or tokens of all texts, W texts, S tokens of the longest, R rows of a text,
K experts, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlstm_model.adaptation import mixture
from rlstm_model.adaptation.fast_weights import send
from rlstm_model.adaptation.mixture import MixtureState
from rlstm_model.scoring import LOGPROB_FLOOR, TokenScores, score_log_probs

# Log-probabilities that are scored at once: what is made of them on the way is several times as large.
_ELEMENTS_AT_ONCE = 1 << 21
# Over a single row a sum may be split between threads, which changes its last bits. So there are never few.
_TILE = 8


class Place(NamedTuple):
    """Where a row's predictions are: its pass, its row in it, and how many tokens to leave out before."""

    number: int
    row: int
    skipped: int = 0


class Text(NamedTuple):
    """Tokens that came, and the rows that predicted them.

    places          of the rows, R of them; the last ``experts`` are mixed
    static          whether the first row's log-probabilities are wanted too
    before          the mixture before the tokens, of one session; None for a single expert
    top             alternatives that are wanted of each token
    logprobs_only   leaves out ranks and entropies
    """

    targets: Sequence[int]
    places: Sequence[Place]
    experts: int
    static: bool
    before: MixtureState | None
    top: int = 0
    logprobs_only: bool = False


class Scored(NamedTuple):
    """The scores of a text.

    scores           of the mixture; None where no expert computed a distribution of some token
    static_logprobs  of the first row, float32 on the CPU; None where they were not wanted
    mixture          after the tokens
    broken           which of the rows computed no distribution of some token
    """

    scores: TokenScores | None
    static_logprobs: Tensor | None
    mixture: MixtureState | None
    broken: Sequence[bool]


class Predictions(NamedTuple):
    """The distributions of all passes.

    log_probs_MV  of pass after pass, window after window, token after token, row after row
    begin         for each pass, where each of its tokens' rows begin
    """

    log_probs_MV: Tensor
    begin: Sequence[Sequence[int]]

    @classmethod
    def of(cls, passes: Sequence[Sequence[Tensor]]) -> "Predictions":
        """From the windows of each pass, logits ``[T, N, V]`` up to a constant."""
        like = passes[0][0]
        total = sum(window.shape[0] * window.shape[1] for windows in passes for window in windows)
        log_probs_MV = like.new_empty(total, like.shape[-1])
        begin: list[list[int]] = []
        done = 0
        for windows in passes:
            begin.append([])
            for window in windows:
                tokens, rows, _ = window.shape
                own = slice(done, done + tokens * rows)
                torch.log_softmax(window.flatten(0, 1), -1, out=log_probs_MV[own])
                begin[-1] += range(done, own.stop, rows)
                done = own.stop
        return cls(log_probs_MV, begin)

    def score(self, texts: Sequence[Text]) -> list[Scored]:
        """Scores of each text."""
        results: dict[int, Scored] = {}
        forms = dict.fromkeys((len(text.places), text.experts) for text in texts)
        for form in forms:
            chosen = [i for i, text in enumerate(texts) if (len(text.places), text.experts) == form]
            results |= zip(chosen, self._score([texts[i] for i in chosen]), strict=True)
        return [results[i] for i in range(len(texts))]

    def rows(self, places: Sequence[Sequence[Place]], time: int = 0) -> Tensor:
        """The distributions ``[W, R, V]`` of one token, by the places of each text's rows."""
        index = [[self._index(place, time) for place in own] for own in places]
        return self.log_probs_MV[send(index, torch.int64, self.log_probs_MV.device)]

    def _index(self, place: Place, time: int) -> int:
        return self.begin[place.number][place.skipped + time] + place.row

    def _score(self, texts: Sequence[Text]) -> list[Scored]:
        """The same where all have as many rows, and as many experts."""
        tokens = _Tokens.of(self, texts)
        own_MR = self.log_probs_MV[tokens.index_MR, tokens.targets_M.unsqueeze(1)]
        broken = tokens.any(own_MR.isnan())
        experts = texts[0].experts
        weights_MK: Tensor | None = None
        after: list[MixtureState | None] = [None] * len(texts)
        lost = [own[-1] for own in broken]
        if experts > 1:
            weights_MK, after, lost = _follow(tokens, own_MR[:, -experts:], texts)
        scores: list[TokenScores | None] = [None] * len(texts)
        for chosen in _alike(texts, lost):
            for i, own in zip(chosen, self._columns(tokens, chosen, texts, weights_MK), strict=True):
                scores[i] = own
        static = torch.split(own_MR[:, 0].float().clamp(LOGPROB_FLOOR, 0.0).cpu(), tokens.lengths)
        return [
            Scored(scores[i], static[i] if text.static else None, after[i], broken[i])
            for i, text in enumerate(texts)
        ]

    def _columns(
        self, tokens: "_Tokens", chosen: Sequence[int], texts: Sequence[Text], weights_MK: Tensor | None
    ) -> list[TokenScores]:
        """Scores of the chosen texts, which want the same."""
        text = texts[chosen[0]]
        places_M = tokens.of_texts(chosen)
        parts = [
            self._part(part_M, tokens, text, weights_MK)
            for part_M in torch.split(places_M, self._tokens_at_once(text.experts))
        ]
        columns = parts[0] if len(parts) == 1 else TokenScores.concatenate(parts)
        return columns.split([tokens.lengths[i] for i in chosen])

    def _part(
        self, places_M: Tensor, tokens: "_Tokens", text: Text, weights_MK: Tensor | None
    ) -> TokenScores:
        more = -len(places_M) % _TILE
        padded_M = torch.cat((places_M, places_M[-1:].expand(more)))
        mixed_MV = self._mixed(tokens.index_MR[padded_M, -text.experts :], weights_MK, padded_M)
        scores = score_log_probs(
            mixed_MV, tokens.targets_M[padded_M], text.top, logprobs_only=text.logprobs_only
        )
        return scores.rows(slice(len(places_M))) if more else scores

    def _mixed(self, index_MK: Tensor, weights_MK: Tensor | None, places_M: Tensor) -> Tensor:
        if weights_MK is None:
            return self.log_probs_MV[index_MK[:, 0]]
        return mixture.mix(weights_MK[places_M], self.log_probs_MV[index_MK])

    def _tokens_at_once(self, experts: int) -> int:
        return max(_TILE, _ELEMENTS_AT_ONCE // (self.log_probs_MV.shape[1] * experts) // _TILE * _TILE)


class _Tokens(NamedTuple):
    """The tokens of texts of R rows, one after the other.

    text_M, time_M   which text each belongs to, and its number there
    targets_M        the tokens
    index_MR         the places of the distributions that predicted each
    """

    lengths: list[int]
    text_M: Tensor
    time_M: Tensor
    targets_M: Tensor
    index_MR: Tensor

    @classmethod
    def of(cls, predictions: Predictions, texts: Sequence[Text]) -> "_Tokens":
        """From texts, and the passes that predicted them."""
        device = predictions.log_probs_MV.device
        lengths = [len(text.targets) for text in texts]
        longest = max(map(len, predictions.begin))
        begin_PT = torch.tensor([[*own, *(longest - len(own)) * [0]] for own in predictions.begin])
        number_WR, row_WR, skipped_WR = torch.tensor([text.places for text in texts]).unbind(-1)
        lengths_W = torch.tensor(lengths)
        text_M = torch.repeat_interleave(lengths_W)
        time_M = torch.arange(len(text_M)) - (lengths_W.cumsum(0) - lengths_W)[text_M]
        index_MR = begin_PT[number_WR[text_M], time_M[:, None] + skipped_WR[text_M]] + row_WR[text_M]
        targets = [target for text in texts for target in text.targets]
        targets_M = send(targets, torch.int64, device)
        text_M, time_M, index_MR = (own.to(device) for own in (text_M, time_M, index_MR))
        return cls(lengths, text_M, time_M, targets_M, index_MR)

    def any(self, flags_MR: Tensor) -> list[list[bool]]:
        """For each text and row, whether a token is flagged."""
        if not bool(flags_MR.any()):
            return [[False] * flags_MR.shape[1] for _ in self.lengths]
        counts_WR = torch.zeros(len(self.lengths), flags_MR.shape[1], device=flags_MR.device)
        counts_WR.index_add_(0, self.text_M, flags_MR.to(counts_WR))
        return (counts_WR > 0).tolist()

    def of_texts(self, chosen: Sequence[int]) -> Tensor:
        """The places of the chosen texts' tokens."""
        if len(chosen) == len(self.lengths):
            return torch.arange(len(self.text_M), device=self.text_M.device)
        wanted_W = torch.zeros(len(self.lengths), dtype=torch.bool, device=self.text_M.device)
        wanted_W[list(chosen)] = True
        return wanted_W[self.text_M].nonzero()[:, 0]


def _follow(
    tokens: _Tokens, own_MK: Tensor, texts: Sequence[Text]
) -> tuple[Tensor, list[MixtureState | None], list[bool]]:
    """The experts' weights before each token; after each text its mixture, and whether all were broken."""
    before = MixtureState.concatenate([text.before for text in texts if text.before is not None])
    own_SWK = own_MK.new_zeros(max(tokens.lengths), *before.weights_NK.shape)
    active_SW = torch.zeros(own_SWK.shape[:2], dtype=torch.bool, device=own_MK.device)
    own_SWK[tokens.time_M, tokens.text_M] = own_MK
    active_SW[tokens.time_M, tokens.text_M] = True
    done = mixture.read(before, own_SWK, active_SW)
    weights_MK = done.weights_SNK[tokens.time_M, tokens.text_M]
    return weights_MK, [*done.state.sessions()], done.lost_N.tolist()


def _alike(texts: Sequence[Text], lost: Sequence[bool]) -> Iterator[list[int]]:
    """Texts that want the same, without those of which there is nothing to be said."""
    wanted: dict[tuple[int, bool], list[int]] = {}
    for i, text in enumerate(texts):
        if not lost[i]:
            wanted.setdefault((text.top, text.logprobs_only), []).append(i)
    yield from wanted.values()
