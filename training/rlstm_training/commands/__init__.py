"""The commands of ``rlstm`` that training offers, a module each."""
