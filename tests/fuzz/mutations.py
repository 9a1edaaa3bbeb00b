"""Valid exports made invalid, where a parser looks."""

import json
import struct

LONGEST = 200_000
_LENGTH_BYTES = 8
_METADATA = "__metadata__"

SCALARS = (
    None, True, False, 0, 1, -1, 1.0, 0.5, -0.5, 1e308, 5e-324, float("nan"), float("inf"), 2**31, 2**53 + 1,
    2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**12, 10**400, "", "a", "1", "\0", "\ud83d", "\u202e", "F64",
    "F4", "full", "sparse", "../x", "é" * 600, "x" * 5_000,
)  # fmt: skip
NO_JSON = (
    b"", b"-0", b"NaN", b"1e400", b"9" * 5_000, b"01", b"{}", b'"a" "b"', b"['a']", b"[1,]", b"/**/ 1",
    b'"\\x41"', b'"\\ud83d"', b'"\xed\xa0\x80"', b'"\xc0\xaf"', b'"\xff"', b'"\n"', b'{"a":1,"\\u0061":2}',
    b'{"a":' * 10_000,
)  # fmt: skip
"""In place of a header; a few of them are JSON."""
FLOATS = (float("nan"), float("inf"), float("-inf"), 1e38, -1e38, 1e-45, 1e6)


class Parts:
    """A file taken apart: the session's header, the tensors' header, and the bytes behind them."""

    def __init__(self, data):
        end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
        self.named = json.loads(data[_LENGTH_BYTES:end])
        self.header = json.loads(self.named.pop(_METADATA)["rlstm"])
        self.values = data[end:]

    def joined(self, draw, *, honest):
        """The file again; `honest` says that the length in it is that of its header."""
        named = self.named
        if isinstance(named, dict) and _METADATA not in named:
            named = named | {_METADATA: {"rlstm": _text(self.header, draw).decode("latin-1")}}
        text = _text(named, draw)
        return _length(text, _LENGTH_BYTES, draw, honest=honest) + text + self.values


def mutated(files, draw):
    """One of the files with something wrong."""
    return draw.choice((_by_structure, _by_structure, _by_structure, _by_bytes))(files, draw)[:LONGEST]


def _by_structure(files, draw):
    parts, other = Parts(draw.choice(files)), Parts(draw.choice(files))
    for _ in range(draw.randint(1, 3)):
        draw.choice(CHANGES)(parts, other, draw)
    return parts.joined(draw, honest=draw.random() < 0.95)


def _by_bytes(files, draw):
    return scrambled(draw.choice(files), draw)


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


def _text(content, draw):
    """JSON, now and then with a name twice, and now and then something else."""
    if draw.random() < 0.01:
        return draw.choice(NO_JSON)
    text = json.dumps(content).encode()
    if draw.random() < 0.02 and isinstance(content, dict) and content:
        name = draw.choice(list(content))
        twice = json.dumps({name: draw.choice([content[name], *SCALARS])}).encode()
        text = text[:-1] + b"," + twice[1:]
    return text


def _length(text, size, draw, *, honest):
    stated = (
        len(text) if honest else draw.choice([0, 1, len(text) - 1, len(text) + 1, 10**12, 2**63, 2**64 - 1])
    )
    return min(max(stated, 0), 256**size - 1).to_bytes(size, "little")


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
            container[name] = draw.choice(SCALARS)
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
            container[name] = _deep(draw) if draw.random() < 0.1 else {"a": container[name]}


def _deep(draw):
    value = 1
    for _ in range(draw.choice([30, 100, 250])):
        value = [value] if draw.random() < 0.5 else {"a": value}
    return value


def change_header(parts, _, draw):
    """Anywhere in what is no tensor."""
    change_tree(parts.header, draw)


def change_layout(parts, _, draw):
    """Anywhere in the tensors' header."""
    change_tree(parts.named, draw)


def lie_about_a_tensor(parts, _, draw):
    """A shape or place that a careless reader would allocate, or read beyond."""
    tensors = [one for one in parts.named.values() if isinstance(one, dict)] if parts.named else []
    if not tensors:
        return
    tensor = draw.choice(tensors)
    match draw.randrange(5):
        case 0:
            tensor["shape"] = draw.choice(
                [[10**12], [10**6, 10**6, 10**6], [2**63, 2], [0], [], [-1, 4], [2.5]]
            )
        case 1:
            tensor["dtype"] = draw.choice(
                ["F64", "F32", "F16", "BF16", "BOOL", "I64", "U8", "F8_E5M2", "F33", ""]
            )
        case 2:
            tensor["data_offsets"] = draw.choice(
                [[0, 10**12], [-8, 8], [8, 0], [0, 0], [2**63, 2**64], [1], []]
            )
        case 3:
            tensor["data_offsets"] = draw.choice(tensors).get("data_offsets")
        case _:
            at = draw.randrange(4, 64)
            tensor["data_offsets"] = [at, at + 8 * draw.randrange(9)]


def add_tensors(parts, _, draw):
    """Entries that no model has, up to thousands of them."""
    count = draw.choices([1, 300, 2_000], [90, 9, 1])[0]
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [len(parts.values)] * 2}
    if isinstance(parts.named, dict):
        parts.named |= {f"{draw.choice('adn')}{number}": entry for number in range(count)}
        if draw.random() < 0.3:
            parts.named["__metadata__"] = draw.choice([{"a": "b"}, {}, 1, None, {"a": 1}])


def change_values(parts, _, draw):
    """Numbers that are none, or that nothing can be computed with."""
    values = bytearray(parts.values)
    if len(values) < 8:
        return
    for _ in range(draw.randint(1, 3)):
        form = draw.choice("fd")
        at = draw.randrange(0, len(values) - 7) & ~3
        struct.pack_into(f"<{form}", values, at, draw.choice(FLOATS))
    parts.values = bytes(values)


def change_size(parts, _, draw):
    """Bytes too few, or too many."""
    cut = draw.randint(1, 64)
    parts.values = parts.values[:-cut] if draw.random() < 0.5 else parts.values + draw.randbytes(cut)


def exchange(parts, other, draw):
    """The header of one session with the tensors of another, or a part of its state."""
    match draw.randrange(3):
        case 0:
            parts.named, parts.values = other.named, other.values
        case 1:
            parts.header = other.header
        case _:
            own, theirs = parts.header, other.header
            if isinstance(own, dict) and own:
                name = draw.choice(list(own))
                own[name] = theirs.get(name)


def change_owner(parts, _, draw):
    """Another tenant's, another model's, another calibration's."""
    if isinstance(parts.header, dict):
        parts.header[draw.choice(["tenant", "fingerprint", "adaptation_fingerprint", "session"])] = "0" * 64


CHANGES = (
    change_header,
    change_header,
    change_header,
    change_layout,
    lie_about_a_tensor,
    add_tensors,
    change_values,
    change_size,
    exchange,
    change_owner,
)
