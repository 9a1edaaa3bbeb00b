"""What `benchmarks.serve` is made of: load, what is measured under it, and what is told of it."""
