"""Language models that were trained elsewhere: a torch.nn.LSTM's state dict and its vocabulary."""


class ImportRefused(ValueError):
    """A state dict or vocabulary that cannot be imported; the message names the tensor, word or line."""
