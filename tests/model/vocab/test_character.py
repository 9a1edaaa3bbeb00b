"""Characters: one id a code point, and one for all others."""

from hypothesis import given
from hypothesis import strategies as st

from rlstm_model.vocab import WordVocab

CHARS = WordVocab.of_characters_in("hello wörld 🙂")
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(TEXT)
def test_characters_outside_the_vocabulary_are_unknown(fed, text):
    """One token a code point; what the vocabulary lacks is counted and decodes to U+FFFD."""
    encoded = CHARS.encode(text)
    known = "".join(c if c in CHARS.words else "\N{REPLACEMENT CHARACTER}" for c in text)
    assert list(encoded.starts) == list(range(len(text)))
    assert list(encoded.ends) == [start + 1 for start in encoded.starts]
    assert encoded.unknown == sum(c not in CHARS.words for c in text)
    assert CHARS.decode(encoded.ids) == known == "".join(fed(CHARS, encoded.ids))


def test_character_ids_are_in_code_point_order_with_the_unknown_last():
    """The newline is always there: it is bos and eos."""
    vocab = WordVocab.of_characters_in("ba")
    assert vocab.words == ("\n", "a", "b", "<unk>")
    assert vocab.encode("\nabz").ids == [0, 1, 2, 3]
    assert (vocab.size, vocab.bos_id, vocab.eos_id, vocab.unknown_id) == (4, 0, 0, 3)
