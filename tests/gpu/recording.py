"""What stands for a CUDA graph where there is no GPU: a recording of tensor operations.

Like a graph it replays these and no line of Python, on the memory that they had, and it refuses what cannot
be recorded.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rlstm_model.torch_backend.graphs import Recorded


class Recording(TorchDispatchMode):
    """The operations of a run, to be done again on the same memory."""

    # They ask for a value, make one of Python's numbers, or have a shape that depends on values.
    refused = frozenset({"_local_scalar_dense", "item", "lift_fresh", "nonzero", "masked_select", "equal"})

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        by_mask = name == "index" and any(part is not None and part.dtype == torch.bool for part in args[1])
        if name in self.refused or by_mask:
            raise RuntimeError(f"{name} cannot be recorded")
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self):
        """All of them, in their order; a view is still one."""
        for func, args, kwargs, result in self.calls:
            if func.is_view:
                continue
            for kept, done in zip(tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True):
                if done.data_ptr() != kept.data_ptr():
                    kept.copy_(done)


def record(run):
    """See :class:`~rlstm_model.torch_backend.graphs.Capture`; the first run prepares, as on a GPU."""
    run()
    with Recording() as recording:
        results = run()
    for result in results:
        result.fill_(float("nan"))
    return Recorded(recording.replay, results)
