"""`rlstm doctor`: whether a server would start here, and what to do where it would not."""
