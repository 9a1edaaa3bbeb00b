"""Vocabularies of models that were trained elsewhere, each made by the library it is of."""

import base64
import io
from functools import cache

import pytest

from rlstm_model.vocab import PieceVocab, WordVocab

TEXT = "the cat sat on the mat, and the dog sat on 12 logs; it was the best of times\n" * 8


@cache
def tokenizer_of(name):
    """A tokenizer.json's text: of bytes, of marked words, of words with suffixes, of whole words."""
    library = pytest.importorskip("tokenizers")
    models, pre, decoders = library.models, library.pre_tokenizers, library.decoders
    trainers = library.trainers
    tokenizer, trainer = {
        "bytes": (library.Tokenizer(models.BPE()), trainers.BpeTrainer),
        "marks": (library.Tokenizer(models.BPE(unk_token="<unk>")), trainers.BpeTrainer),
        "suffixes": (library.Tokenizer(models.WordPiece(unk_token="<unk>")), trainers.WordPieceTrainer),
        "whole": (library.Tokenizer(models.WordLevel(unk_token="<unk>")), trainers.WordLevelTrainer),
    }[name]
    tokenizer.pre_tokenizer, tokenizer.decoder = {
        "bytes": (pre.ByteLevel(add_prefix_space=False), decoders.ByteLevel()),
        "marks": (pre.Metaspace(), decoders.Metaspace()),
        "suffixes": (pre.BertPreTokenizer(), decoders.WordPiece()),
        "whole": (pre.WhitespaceSplit(), None),
    }[name]
    options = {"special_tokens": ["<unk>", "</s>"], "vocab_size": 300, "show_progress": False}
    if name == "bytes":
        options["initial_alphabet"] = pre.ByteLevel.alphabet()
    tokenizer.train_from_iterator(TEXT.split("\n"), trainer(**options))
    return tokenizer.to_str()


@cache
def sentencepiece_model():
    """A sentencepiece model's bytes."""
    library, model = pytest.importorskip("sentencepiece"), io.BytesIO()
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.split("\n")),
        model_writer=model,
        vocab_size=45,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return model.getvalue()


def pieces_of(name):
    """The vocabulary of one of them."""
    if name == "sentencepiece":
        return PieceVocab(name, base64.b64encode(sentencepiece_model()).decode(), "</s>", "<unk>", "<s>")
    return PieceVocab("tokenizers", tokenizer_of(name), eos="</s>")


WORDS = ("<s>", "</s>", "the", "cat", "sat", ".")
LISTS = {
    "refusing": WordVocab(WORDS, eos="</s>", unknown=None, bos="<s>"),
    "lower": WordVocab((*WORDS, "UNK"), eos="</s>", unknown="UNK", lower=True),
    "no lines": WordVocab((*WORDS, "<unk>"), eos=None, bos="."),
    "characters": WordVocab(("<unk>", "<eos>", "t", "h", "e", " ", "c", "a"), by_character=True),
}
PIECES = ("bytes", "marks", "suffixes", "whole", "sentencepiece")
