"""Recipes by name: functions that return a complete :class:`rlstm_training.config.Recipe`.

Those of one CPU core first, then every row of both tables of results of Melis 2022, then the ablation.
"""

from collections.abc import Callable

from rlstm_training.config import Recipe
from rlstm_training.recipes.ablation import ABLATION
from rlstm_training.recipes.bytes_small import bytes_small
from rlstm_training.recipes.characters_small import characters_small
from rlstm_training.recipes.enwik8 import (
    enwik8_48m_lstm,
    enwik8_48m_mogrifier_2019,
    enwik8_48m_rlstm,
    enwik8_96m_lstm,
    enwik8_96m_mogrifier_2019,
    enwik8_96m_rlstm,
)
from rlstm_training.recipes.ptb_characters import (
    ptb_characters_24m_lstm,
    ptb_characters_24m_mogrifier_2019,
    ptb_characters_24m_rlstm,
)
from rlstm_training.recipes.ptb_words import (
    ptb_words_24m_lstm,
    ptb_words_24m_mogrifier_2019,
    ptb_words_24m_rlstm,
)
from rlstm_training.recipes.subwords_base import subwords_base
from rlstm_training.recipes.subwords_small import subwords_small
from rlstm_training.recipes.text8 import text8_48m_lstm, text8_48m_rlstm, text8_96m_lstm, text8_96m_rlstm
from rlstm_training.recipes.tiny import tiny
from rlstm_training.recipes.wikitext_2 import (
    wikitext_2_35m_lstm,
    wikitext_2_35m_mogrifier_2019,
    wikitext_2_35m_rlstm,
)
from rlstm_training.recipes.words_small import words_small

RECIPES: dict[str, Callable[[], Recipe]] = {
    "tiny": tiny,
    "bytes-small": bytes_small,
    "characters-small": characters_small,
    "words-small": words_small,
    "subwords-small": subwords_small,
    "subwords-base": subwords_base,
    "ptb-words-24m-rlstm": ptb_words_24m_rlstm,
    "ptb-words-24m-lstm": ptb_words_24m_lstm,
    "ptb-words-24m-mogrifier-2019": ptb_words_24m_mogrifier_2019,
    "wikitext-2-35m-rlstm": wikitext_2_35m_rlstm,
    "wikitext-2-35m-lstm": wikitext_2_35m_lstm,
    "wikitext-2-35m-mogrifier-2019": wikitext_2_35m_mogrifier_2019,
    "ptb-characters-24m-rlstm": ptb_characters_24m_rlstm,
    "ptb-characters-24m-lstm": ptb_characters_24m_lstm,
    "ptb-characters-24m-mogrifier-2019": ptb_characters_24m_mogrifier_2019,
    "enwik8-48m-rlstm": enwik8_48m_rlstm,
    "enwik8-48m-lstm": enwik8_48m_lstm,
    "enwik8-48m-mogrifier-2019": enwik8_48m_mogrifier_2019,
    "enwik8-96m-rlstm": enwik8_96m_rlstm,
    "enwik8-96m-lstm": enwik8_96m_lstm,
    "enwik8-96m-mogrifier-2019": enwik8_96m_mogrifier_2019,
    "text8-48m-rlstm": text8_48m_rlstm,
    "text8-48m-lstm": text8_48m_lstm,
    "text8-96m-rlstm": text8_96m_rlstm,
    "text8-96m-lstm": text8_96m_lstm,
    **ABLATION,
}
