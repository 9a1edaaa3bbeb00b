"""What the page makes of answers, held against the server's own cutting of text into tokens."""

import json
import random
import re

import pytest

from rlstm_client._appends import cut
from rlstm_model.vocab import ByteVocab, SubwordVocab, WordVocab
from rlstm_server.engine.reading import START, read_passage

pytestmark = [pytest.mark.page, pytest.mark.timeout(300)]

CHARACTERS = "ab  \n\tzäß€日🦊e\u0301'."
SAMPLE = "the cat sat on the mat, the cat sat.\nÄpfel und 🦊, the fox.\n" * 4
VOCABS = {
    "bytes": ByteVocab,
    "characters": lambda: WordVocab.of_characters_in(SAMPLE),
    "subwords": lambda: SubwordVocab.build(SAMPLE, 275),
    "words": lambda: WordVocab.build(SAMPLE),
}
CUT = """async ([texts, most]) => {
  const { cut, byteLength } = await import("/page/cut.js");
  return texts.map((text) => {
    const pieces = [];
    for (let at = 0; at < text.length; at += pieces.at(-1).length) {
      pieces.push(text.slice(at, cut(text, at, most)));
    }
    return [pieces, byteLength(text)];
  });
}"""
READ = """async ([session, coversAll, pieces]) => {
  const { Transcript } = await import("/page/transcript.js");
  const transcript = Transcript.of(session, { coversAll });
  for (const [text, answer] of pieces) transcript.add(text, answer);
  const { length, blocks, adapted, fixed, tokens, curve, now } = transcript;
  return {
    text: blocks.map((block) => block.text ?? `[${block.label}]`).join(""),
    cells: Array.from({ length }, (_, cell) => transcript.token(cell)),
    sum: [adapted, fixed].map((column) => column.reduce((sum, bits) => sum + bits, 0)),
    tokens: tokens.reduce((sum, count) => sum + count, 0),
    longest: Math.max(...blocks.map((block) => block.text?.length ?? 0)),
    now,
    curve: curve.length,
  };
}"""


def texts(count):
    chance = random.Random(5)
    return ["".join(chance.choices(CHARACTERS, k=chance.randrange(1, 400))) for _ in range(count)]


SESSION = {"position": 0, "weights": [0.5, 0.5], "totals": {"bytes": 0, "adapted_bits": 0, "static_bits": 0}}
"""As much of a new session as a transcript asks for."""


def answer_to(piece, text, *, position=0, pending=0, seed=0):
    """As much of the answer to an append, which read `piece`, with scores drawn at random."""
    chance = random.Random(f"{seed}-{position}")
    adapted = [-chance.expovariate(0.6) for _ in piece.ids]
    return {
        "position": position + len(piece.ids),
        "logprobs": adapted,
        "static_logprobs": [min(0.0, bits - chance.gauss(0.2, 0.4)) for bits in adapted],
        "ranks": [1 + int(bits * bits) for bits in adapted],
        "ids": list(piece.ids),
        "starts": list(piece.starts),
        "ends": list(piece.ends),
        "weights": [0.25, 0.75],
        "pending": pending,
        "totals": {"tokens": len(piece.ids), "bytes": len(text.encode())},
    }


def answers(vocab, text, seed):
    """A text in random pieces, each with the answer to it; the last flushes what is held back."""
    chance, place, position = random.Random(seed), START, 0
    borders = sorted(chance.sample(range(1, len(text)), min(6, len(text) - 1)))
    pieces = []
    for start, end in zip([0, *borders], [*borders, len(text)], strict=True):
        final = end == len(text)
        piece = read_passage(vocab, text[start:end], "", place=place, final=final)
        held = len(piece.after.pending)
        answer = answer_to(piece, piece.text, position=position, pending=held, seed=seed)
        pieces.append((text[start:end], answer))
        place, position = piece.after, answer["position"]
    return pieces


def test_texts_are_cut_as_by_the_client(visit):
    """Two implementations of one rule: never inside a character, as long as allowed."""
    for most in (4, 5, 64, 2048):
        found = visit.page.evaluate(CUT, [texts(30), most])
        assert [pieces for pieces, _ in found] == [cut(text, most) for text in texts(30)]
        assert [size for _, size in found] == [len(text.encode()) for text in texts(30)]


@pytest.mark.parametrize("kind", VOCABS)
def test_text_and_bits_are_all_there_however_it_was_cut(visit, kind):
    """Held-back words, tokens that share a character, space between words: nothing twice, nothing lost."""
    vocab = VOCABS[kind]()
    known = "".join(sorted(set(SAMPLE)))
    for seed, text in enumerate(texts(20) if kind != "characters" else [known * 3, SAMPLE]):
        pieces = answers(vocab, text, seed)
        shown = visit.page.evaluate(READ, [SESSION, kind != "words", json.loads(json.dumps(pieces))])
        columns = [answer for _, answer in pieces]
        assert text.startswith(shown["text"])
        assert text[len(shown["text"]) :].strip() == ""
        assert shown["tokens"] == sum(len(answer["ids"]) for answer in columns)
        sums = [-sum(sum(answer[name]) for answer in columns) for name in ("logprobs", "static_logprobs")]
        assert shown["sum"] == pytest.approx(sums)
        joined = "".join(shown["cells"])
        assert joined == (re.sub(r"[^\S\n]", "", text) if kind == "words" else text)
    assert shown["now"]["adapted"] == pytest.approx(shown["sum"][0] / shown["now"]["bytes"])


def test_blocks_stay_short(visit):
    """Lines of any length, and none at all."""
    for text in ("a line\n" * 3000, "word " * 4000, "x" * 20_000):
        piece = read_passage(ByteVocab(), text, "", place=START, final=True)
        shown = visit.page.evaluate(READ, [SESSION, True, [[text, answer_to(piece, text)]]])
        assert shown["text"] == text
        assert shown["longest"] <= 4802
        assert shown["curve"] > len(text) / 40
