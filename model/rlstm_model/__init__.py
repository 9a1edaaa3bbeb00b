"""Recurrent language models: Mogrifier RLSTM and LSTM, scoring, sampling, dynamic evaluation."""

from rlstm_model.local import BeamScorer, LocalModel, Stream, StreamScores, load

__all__ = ["BeamScorer", "LocalModel", "Stream", "StreamScores", "load"]
