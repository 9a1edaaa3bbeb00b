"""The published corpora, in one table. None of them is part of this project.

What is not known for certain is left out: of the character files of the Penn Treebank and of the raw
WikiText-2 only the numbers of lines are.
"""

from collections.abc import Mapping

from rlstm_training.corpora.base import Split
from rlstm_training.corpora.published import PublishedCorpus, PublishedFile

WHOLE = slice(None)
MILLION = 1_000_000

# The usual split of 100 million bytes: 90, 5 and 5 million, in this order.
_NINETY_FIVE_FIVE: Mapping[Split, slice] = {
    "train": slice(0, 90 * MILLION),
    "valid": slice(90 * MILLION, 95 * MILLION),
    "test": slice(95 * MILLION, 100 * MILLION),
}


def _ptb_words(split: Split, lines: int, tokens: int, md5: str) -> PublishedFile:
    name = f"ptb.{split}.txt"
    return PublishedFile(name=name, splits={split: WHOLE}, lines=lines, tokens=tokens, checksums={"md5": md5})


def _ptb_characters(split: Split, lines: int) -> PublishedFile:
    return PublishedFile(name=f"ptb.char.{split}.txt", splits={split: WHOLE}, lines=lines)


def _wikitext(split: Split, size: int, tokens: int, sha256: str) -> PublishedFile:
    return PublishedFile(
        name=f"wiki.{split}.tokens",
        splits={split: WHOLE},
        size=size,
        tokens=tokens,
        checksums={"sha256": sha256},
    )


def _wikitext_raw(split: Split, lines: int) -> PublishedFile:
    return PublishedFile(name=f"wiki.{split}.raw", splits={split: WHOLE}, lines=lines)


_PTB_LICENCE = "LDC licence (LDC99T42): not to be passed on"
_PTB_OBTAIN = (
    "The Penn Treebank may not be passed on: members of the LDC have it, and simple-examples.tgz of "
    "T. Mikolov's RNNLM page holds these files under data/"
)
_WIKIPEDIA_LICENCE = "CC BY-SA 3.0 (also GFDL), the Wikipedia contributors"
_WIKITEXT_OBTAIN = "It is the archive {} of Merity et al. 2016 (arXiv:1609.07843)"

_TABLE = (
    PublishedCorpus(
        name="ptb-words",
        about="Penn Treebank by words, as preprocessed by Mikolov: 10,000 types, <eos> among them",
        licence=_PTB_LICENCE,
        files=(
            _ptb_words("train", 42_068, 929_589, "f26c4b92c5fdc7b3f8c7cdcb991d8420"),
            _ptb_words("valid", 3_370, 73_760, "aa0affc06ff7c36e977d7cd49e3839bf"),
            _ptb_words("test", 3_761, 82_430, "8b80168b89c18661a38ef683c0dc3721"),
        ),
        obtain=_PTB_OBTAIN,
    ),
    PublishedCorpus(
        name="ptb-characters",
        about="The same by characters: 50 symbols, the line end among them",
        licence=_PTB_LICENCE,
        files=(
            _ptb_characters("train", 42_068),
            _ptb_characters("valid", 3_370),
            _ptb_characters("test", 3_761),
        ),
        obtain=_PTB_OBTAIN,
        spaced=True,
    ),
    PublishedCorpus(
        name="wikitext-2",
        about="WikiText-2 by words: 33,278 types, <eos> among them",
        licence="CC BY-SA 3.0, the Wikipedia contributors",
        files=(
            _wikitext(
                "train",
                10_797_148,
                2_088_628,
                "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
            ),
            _wikitext(
                "valid",
                1_121_681,
                217_646,
                "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
            ),
            _wikitext(
                "test",
                1_256_449,
                245_569,
                "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
            ),
        ),
        obtain=_WIKITEXT_OBTAIN.format("wikitext-2-v1.zip"),
    ),
    PublishedCorpus(
        name="wikitext-2-raw",
        about="WikiText-2 before rare words became <unk>",
        licence="CC BY-SA 3.0, the Wikipedia contributors",
        files=(_wikitext_raw("train", 36_718), _wikitext_raw("valid", 3_760), _wikitext_raw("test", 4_358)),
        obtain=_WIKITEXT_OBTAIN.format("wikitext-2-raw-v1.zip"),
    ),
    PublishedCorpus(
        name="enwik8",
        about="100 million bytes of Wikipedia's XML of 2006, split 90/5/5",
        licence=_WIKIPEDIA_LICENCE,
        files=(
            PublishedFile(
                name="enwik8",
                splits=_NINETY_FIVE_FIVE,
                size=100 * MILLION,
                distinct=205,
                checksums={
                    "md5": "a1fa5ffddb56f4953e226637dabbb36a",
                    "sha1": "57b8363b814821dc9d47aa4d41f58733519076b2",
                },
            ),
        ),
        obtain="Get enwik8.zip of mattmahoney.net/dc/textdata.html",
        address="http://mattmahoney.net/dc/enwik8.zip",
    ),
    PublishedCorpus(
        name="text8",
        about="100 million letters and spaces made from the same, split 90/5/5",
        licence=_WIKIPEDIA_LICENCE,
        files=(
            PublishedFile(
                name="text8",
                splits=_NINETY_FIVE_FIVE,
                size=100 * MILLION,
                alphabet=b" abcdefghijklmnopqrstuvwxyz",
                distinct=27,
                checksums={"md5": "3bea1919949baf155f99411df5fada7e"},
            ),
        ),
        obtain="Get text8.zip of mattmahoney.net/dc/textdata.html",
        address="http://mattmahoney.net/dc/text8.zip",
    ),
)

PUBLISHED: Mapping[str, PublishedCorpus] = {corpus.name: corpus for corpus in _TABLE}
