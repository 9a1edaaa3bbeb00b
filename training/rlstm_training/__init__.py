"""Training of recurrent language models: recipes, corpora, runs, evaluation."""
