import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_training.corpora import CorpusError
from rlstm_training.corpora.reading import Extent, first_free, held_out, load_corpus, load_file, load_stream


def test_a_stream_is_its_segments_in_order(corpora):
    """Each segment is the named range of its file."""
    letter, valid = load_file("kinds/letter.txt.xz"), load_corpus("three", "valid")
    assert load_stream("turns") == [
        ("letter.txt @100", letter[100:300]),
        ("valid.txt @0", valid[:150]),
        ("letter.txt @300", letter[300:350]),
    ]


def test_the_prefix_form_cuts_each_segment(corpora):
    """A segment shorter than the prefix stays whole."""
    whole = [raw for _, raw in load_stream("turns")]
    cut = [raw for _, raw in load_stream("turns", prefix=60)]
    assert cut == [whole[0][:60], whole[1][:60], whole[2]]


def test_unknown_and_damaged_streams_are_named(corpora):
    """The error names the streams there are, or the file."""
    with pytest.raises(CorpusError, match=r"no stream 'other'.*there: turns"):
        load_stream("other")
    (corpora / "streams.json").write_text('{"turns": {}}')
    with pytest.raises(CorpusError, match=r"streams.json is no description of streams"):
        load_stream("turns")


def test_held_out_text_is_in_no_stream(corpora):
    """The first bytes after those that a stream uses; the very first where none does."""
    assert held_out("three", "valid", 200) == load_corpus("three", "valid")[150:350]
    assert held_out("three", "test", 200) == load_corpus("three", "test")[:200]
    assert held_out("one", "valid", 200) == load_corpus("one", "valid")[:200]
    assert held_out("kinds/letter", "valid", 300) == load_file("kinds/letter.txt.xz")[350:650]


def test_text_that_is_all_in_streams_is_refused(corpora):
    """Better no calibration text than a test text."""
    with pytest.raises(CorpusError, match="no 9000 bytes in a row"):
        held_out("three", "valid", 9000)


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=5),
    st.integers(0, 20),
    st.integers(1, 15),
)
def test_first_free_against_trying_every_place(ranges, start, length):
    """The earliest place whose bytes are all free; an error exactly when there is none."""
    extent = Extent(path="a", start=start, end=60, licence="")
    taken = [Extent(path="a", start=a, end=a + size, licence="") for a, size in ranges]
    used = {place for a, size in ranges for place in range(a, a + size)}
    free = [at for at in range(start, 61 - length) if used.isdisjoint(range(at, at + length))]
    if free:
        assert first_free(extent, taken, length) == free[0]
    else:
        with pytest.raises(CorpusError):
            first_free(extent, taken, length)
