"""Dynamic evaluation: fast weights that follow a stream (Krause et al. 2017; Melis 2022, §6)."""
