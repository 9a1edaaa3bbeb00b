"""Vocabularies: text to token ids with spans, and back.

==========  =======================================  ====================  ==========================
kind        a token is                               bos and eos           text outside the vocabulary
==========  =======================================  ====================  ==========================
bytes       one byte of the text's UTF-8             byte 10 (newline)     none
characters  one code point                           the newline           the unknown id
words       what stands between white space,         ``<eos>``             ``<unk>``
            or a newline (``<eos>``)
subwords    frequent bytes in a row                  byte 10 (newline)     none
==========  =======================================  ====================  ==========================

Vocabularies are immutable values. Spans count code points of the given text; all bytes of one character
share the character's span.
"""

from rlstm_model.vocab.base import (
    Decoder,
    Encoded,
    Ids,
    InvalidText,
    InvalidToken,
    Vocab,
    VocabError,
    VocabKind,
    check_ids,
)
from rlstm_model.vocab.byte import ByteVocab
from rlstm_model.vocab.character import CharVocab
from rlstm_model.vocab.stored import from_json
from rlstm_model.vocab.subword import SubwordVocab
from rlstm_model.vocab.word import EOS_WORD, UNKNOWN_WORD, WordVocab

__all__ = [
    "EOS_WORD",
    "UNKNOWN_WORD",
    "ByteVocab",
    "CharVocab",
    "Decoder",
    "Encoded",
    "Ids",
    "InvalidText",
    "InvalidToken",
    "SubwordVocab",
    "Vocab",
    "VocabError",
    "VocabKind",
    "WordVocab",
    "check_ids",
    "from_json",
]
