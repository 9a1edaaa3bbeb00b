"""Files in as many bits as a model needs for them, and back: ``rlstm compress`` and ``rlstm decompress``.

Needs the extra `compress`. A file belongs to the model that it was made with, to its calibration where it
learns, and to machines that compute the same bits (:func:`rlstm_model.native.identity`).
"""

from rlstm_model.compression.archive import Summary, compress, decompress
from rlstm_model.compression.header import CompressionError
from rlstm_model.compression.reading import KINDS, Kind

__all__ = ["KINDS", "CompressionError", "Kind", "Summary", "compress", "decompress"]
