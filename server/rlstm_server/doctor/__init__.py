"""`rlstm doctor`: whether a server would start here with these settings, and what to do where it would not."""
