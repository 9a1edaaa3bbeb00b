"""Valid exports made invalid, where a parser of ours looks: safetensors' own is proved by safetensors."""

import json
import struct
from copy import deepcopy

LONGEST = 200_000
_LENGTH_BYTES = 8
_METADATA = "__metadata__"

VALUES = (
    None, True, False, 0, 1, -1, 1.0, 0.5, -0.5, 1e308, 5e-324, float("nan"), float("inf"), 2**31, 2**53 + 1,
    2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**12, 10**400, "", "a", "1", "\0", "\ud83d", "\u202e", "F64",
    "F4", "full", "sparse", "../x", "0" * 64, "é" * 600, "x" * 5_000, [], [0], [10**12], [10**6] * 3,
    [2**63, 2], [-1, 4], [2.5], [0, 10**12], [8, 0], {}, {"a": 1},
)  # fmt: skip
FLOATS = (float("nan"), float("inf"), float("-inf"), 1e38, -1e38, 1e-45, 1e6)


class Parts:
    """A file taken apart: the session's header, the tensors' header, and the bytes behind them."""

    def __init__(self, data):
        end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
        self.named = json.loads(data[_LENGTH_BYTES:end])
        self.header = json.loads(self.named.pop(_METADATA)["rlstm"])
        self.values = data[end:]

    def joined(self):
        """The file again."""
        named = {_METADATA: {"rlstm": json.dumps(self.header)}} | self.named
        text = json.dumps(named).encode()
        return len(text).to_bytes(_LENGTH_BYTES, "little") + text + self.values


def mutated(files, draw):
    """One of the files with something wrong."""
    if draw.random() < 0.25:
        return scrambled(draw.choice(files), draw)[:LONGEST]
    parts, other = Parts(draw.choice(files)), Parts(draw.choice(files))
    for _ in range(draw.randint(1, 3)):
        draw.choice(CHANGES)(parts, other, draw)
    return parts.joined()[:LONGEST]


def scrambled(data, draw):
    """Bytes with a few of them changed, left out, put in or repeated, wherever they are."""
    body = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(body)) if body else 0
        match draw.randrange(5):
            case 0:
                body[at : at + 1] = bytes([draw.randrange(256)])
            case 1:
                del body[at : at + draw.randint(1, 40)]
            case 2:
                body[at:at] = draw.randbytes(draw.randint(1, 40))
            case 3:
                del body[at:]
            case _:
                body[at:at] = body[at : at + 200]
    return bytes(body)


def places_in(content):
    """Every container in a tree, with the names or indices in it."""
    if isinstance(content, dict | list):
        names = list(content) if isinstance(content, dict) else range(len(content))
        yield from ((content, name) for name in names)
        for name in names:
            yield from places_in(content[name])


def change_tree(tree, draw):
    """Put something else, nothing or too much in a place of a JSON value, or take it away."""
    places = list(places_in(tree))
    if not places:
        return
    container, name = draw.choice(places)
    match draw.randrange(8):
        case 0 | 1 | 2:
            container[name] = deepcopy(draw.choice(VALUES))
        case 3:
            del container[name]
        case 4:
            container[name] = [container[name]] * draw.choice([0, 2, 3])
        case 5:
            other, source = draw.choice(places)
            container[name] = json.loads(json.dumps(other[source]))
        case 6 if isinstance(container[name], int | float) and abs(container[name]) < 2**70:
            container[name] += draw.choice([-1, 1, 7, 0.5, 10**12])
        case _:
            container[name] = {"a": container[name]}


def change_header(parts, _, draw):
    """Anywhere in what is no tensor."""
    change_tree(parts.header, draw)


def change_layout(parts, _, draw):
    """Anywhere in the tensors' header."""
    change_tree(parts.named, draw)


def change_values(parts, _, draw):
    """Numbers that are none, or that nothing can be computed with."""
    values = bytearray(parts.values)
    if len(values) < 8:
        return
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(0, len(values) - 7) & ~3
        struct.pack_into(f"<{draw.choice('fd')}", values, at, draw.choice(FLOATS))
    parts.values = bytes(values)


def exchange(parts, other, draw):
    """The header of one session with the tensors of another, or a part of its state."""
    match draw.randrange(3):
        case 0:
            parts.named, parts.values = other.named, other.values
        case 1:
            parts.header = other.header
        case _:
            name = draw.choice(list(other.header))
            parts.header[name] = other.header[name]


CHANGES = (change_header, change_header, change_header, change_layout, change_layout, change_values, exchange)
