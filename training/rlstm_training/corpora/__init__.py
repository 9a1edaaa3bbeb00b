"""Corpora: verified texts with their splits, and the forms they are read in.

``RLSTM_CORPORA`` names the corpora folder. A corpus is, whichever comes first:

* a dataset of the folder's ``manifest.json``, which gives each file's size, sha256 and role; a corpus with
  one file has byte-range splits;
* a published corpus, whose files, as their publisher names them, lie in the folder or in a folder of the
  corpus's name in it (:mod:`rlstm_training.corpora.table`);
* a folder of the user's own with ``train.txt``, ``valid.txt`` and ``test.txt``: name it by its path.
"""

from rlstm_training.corpora.base import ENVIRONMENT, CorpusError, Extent, Split, corpora_folder
from rlstm_training.corpora.forms import in_form, unwrap
from rlstm_training.corpora.reading import load_corpus, load_file, locate, missing_files
from rlstm_training.corpora.table import PUBLISHED

__all__ = [
    "ENVIRONMENT",
    "PUBLISHED",
    "CorpusError",
    "Extent",
    "Split",
    "corpora_folder",
    "in_form",
    "load_corpus",
    "load_file",
    "locate",
    "missing_files",
    "unwrap",
]
