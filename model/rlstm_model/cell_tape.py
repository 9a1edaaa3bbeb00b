"""What a cell writes down on its way through a window, for its way back.

Everything is written where it stays: a tape holds a window, a step is handed its views.
Shape suffixes: L layers, S steps, B batch rows, H hidden units.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class CellStep(NamedTuple):
    """The views of one step, ``[L, B, ..]``, gates by name and by what enters them; see :class:`CellTape`.

    ``one`` is the number, ``[L, 1, 1]``: a Python number takes longer.
    """

    from_x: Tensor
    from_h: Tensor
    i: Tensor
    j: Tensor
    f: Tensor
    o: Tensor
    u: Tensor
    c_old: Tensor
    c: Tensor
    seen: Tensor
    tanh_c: Tensor
    one: Tensor

    @classmethod
    def scratch(cls, c_LBH: Tensor, blocks: tuple[int, int]) -> "CellStep":
        """Room for any number of steps that nothing goes back to: each overwrites the one before."""
        c = c_LBH.clone()
        gates = c.new_empty(*c.shape[:-1], 4 * c.shape[-1])
        from_x, from_h = _entered(gates, blocks)
        u, seen, tanh_c = c.new_empty(3, *c.shape).unbind()
        i, j, f, o = gates.chunk(4, -1)
        return cls(from_x, from_h, i, j, f, o, u, c, c, seen, tanh_c, _one(c))


class CellTape(NamedTuple):
    """A window.

    ``gates`` ``[L, S, B, 4H]``: i, j, f, o; ``c`` ``[L, S + 1, B, H]``, from the one before the first step;
    ``u`` i * j; ``seen`` c as ``o`` sees it; ``tanh_c``.
    """

    gates: Tensor
    c: Tensor
    u: Tensor
    seen: Tensor
    tanh_c: Tensor

    @classmethod
    def empty(cls, like_LSBH: Tensor, *, masked: bool) -> "CellTape":
        """Room for a window. Without a mask ``seen`` is c itself."""
        layers, steps, batch, hidden = like_LSBH.shape
        gates = like_LSBH.new_empty(layers, steps, batch, 4 * hidden)
        c = like_LSBH.new_empty(layers, steps + 1, batch, hidden)
        seen = like_LSBH.new_empty(like_LSBH.shape) if masked else c[:, 1:]
        return cls(gates, c, like_LSBH.new_empty(like_LSBH.shape), seen, like_LSBH.new_empty(like_LSBH.shape))

    @property
    def h(self) -> Tensor:
        """What left the cell ``[L, S, B, H]``, before anything was added to it: o tanh c."""
        return self.gates.chunk(4, -1)[3] * self.tanh_c

    def some(self, steps: slice) -> "CellTape":
        """Some steps."""
        c = self.c[:, steps.start : steps.stop + 1]
        return CellTape(self.gates[:, steps], c, self.u[:, steps], self.seen[:, steps], self.tanh_c[:, steps])

    def steps(self, blocks: tuple[int, int]) -> list[CellStep]:
        """The steps; ``blocks``: how many of the gates x enters, and how many h."""
        fields = (
            *_entered(self.gates, blocks),
            *self.gates.chunk(4, -1),
            self.u,
            self.c[:, :-1],
            self.c[:, 1:],
            self.seen,
            self.tanh_c,
            _one(self.c).unsqueeze(1).expand(-1, self.u.shape[1], -1, -1),
        )
        return [CellStep(*views) for views in zip(*(field.unbind(1) for field in fields), strict=True)]


class CellDeltaStep(NamedTuple):
    """The views of one step, ``[L, B, ..]``, or ``[L, B, gates, H]`` for blocks; see :class:`CellDeltas`."""

    from_x: Tensor
    from_h: Tensor
    f: Tensor
    o: Tensor
    ij: Tensor
    ijf: Tensor


class CellDeltas(NamedTuple):
    """Loss gradients of a window at the pre-activations, ``[L, S, B, 4H]``: i, j, f, o.

    Until the backward pass reaches a step they are slopes: derivatives of c by i, j, f, and of h by o.
    """

    gates: Tensor

    def some(self, steps: slice) -> "CellDeltas":
        """Those of some steps."""
        return CellDeltas(self.gates[:, steps])

    def steps(self, blocks: tuple[int, int]) -> list[CellDeltaStep]:
        """The steps; ``blocks`` as in :meth:`CellTape.steps`."""
        by_gate = self.gates.view(*self.gates.shape[:-1], 4, -1)
        fields = (
            *_entered(self.gates, blocks),
            by_gate[..., 2, :],
            by_gate[..., 3, :],
            by_gate[..., :2, :],
            by_gate[..., :3, :],
        )
        return [CellDeltaStep(*views) for views in zip(*(field.unbind(1) for field in fields), strict=True)]


class CellSlopes(NamedTuple):
    """A step's other slopes: of h by c through the tanh ``[L, B, H]``; of u by i and j ``[L, B, 2, H]``."""

    c: Tensor
    u: Tensor


def slopes(tape: CellTape, h_LSBH: Tensor, deltas: CellDeltas, *, capped: bool) -> list[CellSlopes]:
    """Fill the slopes of a tape's steps into ``deltas`` and return the others (mathematics: §1.3).

    ``h_LSBH`` are the h that left the steps. Where the cap binds, what would reach i goes to f with the
    opposite sign. At an exact tie the slope is i's, as in TensorFlow's minimum.
    """
    i, j, f, o = tape.gates.chunk(4, -1)
    slope_i, slope_j, slope_f, slope_o = deltas.gates.chunk(4, -1)
    h, c_old, u = h_LSBH, tape.c[:, :-1], tape.u
    torch.addcmul(h, h, o, value=-1, out=slope_o)
    slope_c = torch.addcmul(o, h, tape.tanh_c, value=-1)
    slope_u = u.new_empty(*u.shape[:-1], 2, u.shape[-1])
    u_by_i, u_by_j = slope_u.unbind(-2)
    torch.addcmul(u, u, i, value=-1, out=u_by_i)
    torch.addcmul(i, u, j, value=-1, out=u_by_j)
    room = torch.sub(_one(f).unsqueeze(1), f)
    if capped:
        free = torch.le(i, room, out=torch.empty_like(room))
        torch.mul(u_by_i, free, out=slope_i)
        torch.addcmul(c_old - j, j, free, out=slope_f)
        written = torch.minimum(i, room, out=free)
        torch.addcmul(written, written * j, j, value=-1, out=slope_j)
        slope_f.mul_(f).mul_(room)
    else:
        slope_i.copy_(u_by_i)
        slope_j.copy_(u_by_j)
        torch.mul(c_old, f * room, out=slope_f)
    return [CellSlopes(*views) for views in zip(slope_c.unbind(1), slope_u.unbind(1), strict=True)]


def _one(like: Tensor) -> Tensor:
    return like.new_ones(len(like), 1, 1)


def _entered(gates: Tensor, blocks: tuple[int, int]) -> tuple[Tensor, Tensor]:
    hidden = gates.shape[-1] // 4
    return gates[..., : blocks[0] * hidden], gates[..., : blocks[1] * hidden]
