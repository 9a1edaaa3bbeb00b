"""Validation text: what the choices of an evaluation are made on."""

from collections.abc import Sequence

from rlstm_model.vocab import Vocab
from rlstm_training.corpora import locate
from rlstm_training.corpora.streams import held_out
from rlstm_training.corpora.texts import Passage, excerpt

# The most that a token takes on average in any text we know: more is read than is kept.
_BYTES_A_TOKEN = {"bytes": 1, "characters": 4, "words": 8, "subwords": 8}


def validation_passages(vocab: Vocab, corpora: Sequence[str], tokens: int) -> list[Passage]:
    """About ``tokens`` tokens in all: the beginnings of the corpora's validation texts, in equal shares.

    What belongs to a stream is left out. Raises CorpusError.
    """
    share = max(1, tokens // len(corpora))
    return [_beginning(vocab, corpus, share) for corpus in corpora]


def _beginning(vocab: Vocab, corpus: str, tokens: int) -> Passage:
    extent = locate(corpus, "valid")
    length = min(tokens * _BYTES_A_TOKEN[vocab.kind], extent.end - extent.start)
    return first_tokens(vocab, held_out(corpus, "valid", length), f"{corpus} valid", tokens)


def first_tokens(vocab: Vocab, raw: bytes, name: str, tokens: int) -> Passage:
    """The passage of the first ``tokens`` tokens of a text. Raises CorpusError when it holds none."""
    if vocab.kind == "bytes":
        return excerpt(vocab, raw[:tokens], name)
    text = raw.decode(errors="ignore")
    ends = vocab.encode(text).ends
    return excerpt(vocab, text[: ends[min(tokens, len(ends)) - 1]].encode() if ends else b"", name)
