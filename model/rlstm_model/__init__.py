"""Recurrent language models: Mogrifier RLSTM and LSTM, scoring, sampling, dynamic evaluation."""
