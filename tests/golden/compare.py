"""`python -m tests.golden.compare OLD NEW`: what differs between two recordings; exit 1 when something does.

Numbers must be equal to the last bit where both were recorded on one numeric identity, and near elsewhere
(or with --near). A compact recording is compared by digests and sums of its long lists.
"""

import argparse
import hashlib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NEAR = 2e-3
LONG = 8
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
    if isinstance(old, dict) and isinstance(new, list) and "digest" in old:
        new = compact(new)
    if isinstance(new, dict) and isinstance(old, list) and "digest" in new:
        old = compact(old)
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            if name == "digest" and not exact:
                continue
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
    elif not _equal(old, new, exact):
        yield path, _short(old), _short(new)


def _label(part: Any, index: int) -> str:
    return str(part["name"]) if isinstance(part, dict) and "name" in part else str(index)


def _equal(old: Any, new: Any, exact: bool) -> bool:
    numbers = all(isinstance(side, int | float) and not isinstance(side, bool) for side in (old, new))
    if numbers and not exact:
        return math.isclose(old, new, rel_tol=NEAR, abs_tol=NEAR)
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


def load(folder: Path) -> dict[str, Any]:
    """A recording by its parts."""
    parts = {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}
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
    parser.add_argument("--most", type=int, default=400, help="print at most so many differences a part")
    chosen = parser.parse_args()
    old, new = load(chosen.old), load(chosen.new)
    same = old.get("identity") == new.get("identity")
    exact = same and not chosen.near
    print("numbers:", "to the last bit" if exact else f"within {NEAR}")
    count = 0
    for part in sorted((old.keys() & new.keys()) - {"identity"}):
        if chosen.part and part not in chosen.part:
            continue
        found = [*differences(old[part], new[part], exact=exact, path=part)]
        for where, before, after in found[: chosen.most]:
            print(f"{where}\n    - {before}\n    + {after}")
        print(f"{part}: {len(found)} differences")
        count += len(found)
    for part in sorted(old.keys() ^ new.keys()):
        print(f"{part}: recorded on one side only")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
