"""The search for a recipe's settings over the paper's ranges, resumable."""
