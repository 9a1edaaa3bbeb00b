"""The network as a torch module, with its unroll and backward pass written out: for training and for GPUs."""
