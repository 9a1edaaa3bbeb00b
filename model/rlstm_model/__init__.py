"""Recurrent language models: Mogrifier RLSTM and LSTM, scoring, sampling, dynamic evaluation."""

from rlstm_model.local import LocalModel, Stream, StreamScores, load

__all__ = ["LocalModel", "Stream", "StreamScores", "load"]
