"""Vocabularies of models that were trained elsewhere: lists with other special tokens, and tokenizers."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.model.vocab.elsewhere import LISTS, PIECES, pieces_of, sentencepiece_model, tokenizer_of

from rlstm_model.vocab import PieceVocab, UnknownText, VocabError, WordVocab

ALL = [*LISTS, *PIECES]
LINE = "the cat sat on the mat, and 12 logs"


@pytest.mark.parametrize("name", ALL)
@given(text=st.text(st.sampled_from("the cat.\n  \u2003T"), max_size=16), at=st.integers(0, 16))
def test_a_text_may_be_cut_anywhere(name, text, at):
    """What is ready, then the rest: the tokens of the whole, whose spans are in the text and in order."""
    vocab = LISTS[name] if name in LISTS else pieces_of(name)
    try:
        whole = vocab.encode(text)
    except UnknownText:
        return
    ready, pending = vocab.split_pending(text[:at], final=False)
    rest, nothing = vocab.split_pending(pending + text[at:], final=True)
    assert (ready + pending, nothing) == (text[:at], "")
    assert vocab.encode(ready).ids + vocab.encode(rest).ids == whole.ids
    spans = list(zip(whole.starts, whole.ends, strict=True))
    assert all(0 <= start <= end <= len(text) for start, end in spans)
    assert spans == sorted(spans)


@pytest.mark.parametrize("name", PIECES)
def test_a_line_is_read_as_its_library_reads_it(name):
    """And comes back; a newline is the end of a line, or the library's own piece."""
    vocab = pieces_of(name)
    vocab.check()
    if name == "sentencepiece":
        library = pytest.importorskip("sentencepiece").SentencePieceProcessor(
            model_proto=sentencepiece_model()
        )
        expected = library.encode(LINE)
    else:
        library = pytest.importorskip("tokenizers").Tokenizer.from_str(tokenizer_of(name))
        expected = library.encode(LINE, add_special_tokens=False).ids
    assert vocab.encode(LINE).ids == expected
    ids = vocab.encode(f"{LINE}\n{LINE}").ids
    assert len(ids) == 2 * len(expected) + 1
    spaced = LINE.replace(",", " ,") if name == "suffixes" else LINE
    assert name == "whole" or vocab.decode(ids) == f"{spaced}\n{spaced}"
    assert vocab.token_bytes(ids[len(expected)]) == b"\n"


def test_special_words_of_another_list():
    """What ends a line, what begins a text, what is unknown, and what is refused."""
    refusing, lower = LISTS["refusing"], LISTS["lower"]
    assert refusing.encode("the cat\n").ids == [2, 3, 1]
    assert (refusing.bos_id, refusing.eos_id, refusing.unknown_id) == (0, 1, None)
    with pytest.raises(UnknownText, match="'dog', at character 4"):
        refusing.encode("the dog")
    assert lower.encode("The DOG <s> UNK").ids == [2, 6, 0, 6]
    lines = LISTS["no lines"]
    assert lines.encode("the\ncat .").ids == [2, 3, 5]
    assert (lines.bos_id, lines.eos_id) == (5, 5)
    characters = LISTS["characters"]
    assert characters.encode("the <eos>\n").ids == [2, 3, 4, 5, 0, 4, 0, 0, 0, 1]
    assert characters.decode([2, 3, 4, 5, 0, 1]) == "the \N{REPLACEMENT CHARACTER}\n"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: WordVocab(("a", "<unk>"), eos=None), "bos must be named"),
        (lambda: WordVocab(("a", "<unk>"), eos="</s>"), "words must hold '</s>'"),
        (lambda: WordVocab(("a", "<unk>"), eos=["a"]), "words must hold"),
        (lambda: replace(LISTS["lower"], lower=1), "lower must be true or false"),
        (lambda: PieceVocab("spacy", ""), "library must be"),
        (lambda: PieceVocab("tokenizers", "{}", eos="a"), "is none that the tokenizers library reads"),
        (lambda: PieceVocab("sentencepiece", "AAAA", eos="a"), "is no sentencepiece model"),
        (lambda: PieceVocab("tokenizers", tokenizer_of("marks")), "bos must be named"),
        (lambda: PieceVocab("tokenizers", tokenizer_of("marks"), eos="<eos>"), "pieces must hold '<eos>'"),
    ],
)
def test_what_is_no_vocabulary_is_named(wrong, message):
    with pytest.raises(VocabError, match=message):
        wrong()


def test_a_tokenizer_whose_pieces_cross_words_is_found():
    """Without a pre-tokenizer, merges join the end of a word and the next one."""
    library = pytest.importorskip("tokenizers")
    crossing = library.Tokenizer(library.models.BPE())
    trainer = library.trainers.BpeTrainer(vocab_size=60, show_progress=False, special_tokens=["</s>"])
    crossing.train_from_iterator(["it was the best of times, it was the worst"] * 9, trainer)
    with pytest.raises(VocabError, match="more than a word"):
        PieceVocab("tokenizers", crossing.to_str(), eos="</s>").check()
