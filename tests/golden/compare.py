"""`python -m tests.golden.compare OLD NEW`: what differs between two recordings; exit 1 when something does.

Numbers must be equal to the last bit where both were recorded on one numeric identity, and near elsewhere
(or with --near): within READ of what was only read, within LEARNED of what a stream learned before. Fast
weights are kept in half precision, so a last bit of float32 moves one by a thousandth of itself. A compact
recording is compared by digests and sums of its long lists.
"""

import argparse
import hashlib
import json
import lzma
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

READ, LEARNED = (2e-5, 4e-6), (1e-2, 1e-4)
"""Absolute, or relative to the number: of each a sum over many tokens needs the second."""
_READ = re.compile(
    r"(library\.[^.]+\.(score|generate)|exchanges\.(score|generate|completion|logprob)|"
    r"commands\.(score|generate|evaluate \S+ static))(?!.*(adapt|learner))"
)
LONG, MOST = 8, 400
Difference = tuple[str, str, str]


def compact(value: Any) -> Any:
    """The same nest with each long list of numbers as its length, digest and sum."""
    if isinstance(value, dict):
        return {name: compact(part) for name, part in value.items()}
    if not isinstance(value, list):
        return value if not isinstance(value, str) or len(value) < 2000 else f"sha256 {_digest(value)}"
    if len(value) > LONG and all(isinstance(part, int | float) for part in value):
        total = math.fsum(map(float, value))
        return {"length": len(value), "sum": float(f"{total:.7g}"), "digest": _digest(value)}
    if len(value) > LONG and all(isinstance(part, list) for part in value):
        return {"length": len(value), "digest": _digest(value)}
    return [compact(part) for part in value]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def differences(old: Any, new: Any, *, exact: bool, path: str = "") -> Iterator[Difference]:
    """Each place where two nests differ, with both sides."""
    if isinstance(old, dict) and isinstance(new, dict):
        if not exact and "digest" in old and "digest" in new:
            absolute, relative = _tolerance(path)
            near = old["length"] * absolute, relative
            if old["length"] != new["length"] or not _equal(old.get("sum"), new.get("sum"), near):
                yield path, _short(old), _short(new)
            return
        for name in sorted(old.keys() | new.keys()):
            inside = f"{path}.{name}"
            if name not in new:
                yield inside, _short(old[name]), "is gone"
            elif name not in old:
                yield inside, "was not there", _short(new[name])
            else:
                yield from differences(old[name], new[name], exact=exact, path=inside)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, exact=exact, path=f"{path}[{_label(one, index)}]")
    elif not _equal(old, new, None if exact else _tolerance(path)):
        yield path, _short(old), _short(new)


def _label(part: Any, index: int) -> str:
    return str(part["name"]) if isinstance(part, dict) and "name" in part else str(index)


def _tolerance(path: str) -> tuple[float, float]:
    return READ if _READ.match(path) else LEARNED


def _equal(old: Any, new: Any, near: tuple[float, float] | None) -> bool:
    numbers = all(isinstance(side, int | float) and not isinstance(side, bool) for side in (old, new))
    if numbers and near is not None:
        return math.isclose(old, new, abs_tol=near[0], rel_tol=near[1])
    return bool(old == new)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 160 else text[:157] + "..."


def by_name(exchanges: list[dict[str, Any]]) -> dict[str, Any]:
    """Exchanges by name, those of one name numbered, so that one more moves no other."""
    found: dict[str, Any] = {}
    for exchange in exchanges:
        name, count = exchange["name"], 1
        while (key := name if count == 1 else f"{name} ({count})") in found:
            count += 1
        found[key] = exchange
    return found


def save(place: Path, parts: dict[str, Any]) -> None:
    """Write a recording: whole into a folder, compact into a file."""
    if place.suffix == ".xz":
        place.write_bytes(lzma.compress(json.dumps(compact(parts)).encode(), preset=9))
        return
    place.mkdir(parents=True, exist_ok=True)
    for name, value in parts.items():
        (place / f"{name}.json").write_text(json.dumps(value, indent=1) + "\n")


def load(place: Path, *, compacted: bool) -> dict[str, Any]:
    """A recording by its parts."""
    if place.suffix == ".xz":
        parts = json.loads(lzma.decompress(place.read_bytes()))
    else:
        parts = {file.stem: json.loads(file.read_text()) for file in sorted(place.glob("*.json"))}
    parts = compact(parts) if compacted else parts
    if "exchanges" in parts:
        parts["exchanges"] = by_name(parts["exchanges"])
    return parts


def main() -> int:
    """Compare two recordings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--near", action="store_true", help="let numbers differ a little")
    parser.add_argument("--part", action="append", help="only this part (openapi, exchanges, library ...)")
    chosen = parser.parse_args()
    compacted = ".xz" in {chosen.old.suffix, chosen.new.suffix}
    old, new = (load(place, compacted=compacted) for place in (chosen.old, chosen.new))
    same = old.get("identity") == new.get("identity")
    exact = same and not chosen.near
    print("numbers:", "to the last bit" if exact else f"within {READ[0]}, and {LEARNED[0]} after learning")
    count = 0
    for part in sorted((old.keys() & new.keys()) - {"identity"}):
        if chosen.part and part not in chosen.part:
            continue
        found = [*differences(old[part], new[part], exact=exact, path=part)]
        for where, before, after in found[:MOST]:
            print(f"{where}\n    - {before}\n    + {after}")
        print(f"{part}: {len(found)} differences")
        count += len(found)
    for part in sorted(old.keys() ^ new.keys()):
        print(f"{part}: recorded on one side only")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
