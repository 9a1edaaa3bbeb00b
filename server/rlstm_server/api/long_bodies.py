"""Long bodies without what makes them long, so that nobody waits while one is parsed.

The parser holds the interpreter from a document's beginning to its end, and other requests wait. What makes
a document long is cut out first, in pieces: the insides of long strings, and long runs of a list's elements
that hold no others. Each is parsed by itself, and a mark stands in its place in the *skeleton*, which is
short and says the same. Only what is right is cut, so whatever is wrong with a body is wrong with that.
"""

from __future__ import annotations

import json
import re
import secrets
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

LONG_BYTES = 2**18
"""A shorter body is its own skeleton."""

PIECE = 2**16
"""Bytes that are cut out at once: others wait meanwhile."""

STEP = 2**12
"""Bytes of anything else that are passed over at once: more than a short string may have."""

LEAST = 2**10
"""What is shorter is left where it is."""

_QUOTE = ord('"')
_ESCAPE = rb'\\(?:["\\/bfnrt]|u(?![dD][89abAB])[0-9a-fA-F]{4})'
# The first half of a surrogate pair is never the last of a piece: more must be seen to follow.
_FIRST_HALF = rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?=[^\\]|\\[^u]|\\u[0-9a-fA-F]{4})"
_INSIDE = rb'(?:[^"\\\x00-\x1f]++|' + _ESCAPE + rb"|" + _FIRST_HALF + rb")*+"
_CONTENT = re.compile(_INSIDE)
_ELEMENT = rb'[ \t\n\r]*+(?:-?(?:0|[1-9][0-9]{0,599}+)|null|true|false|"' + _INSIDE + rb'")[ \t\n\r]*+,'
_ELEMENTS = re.compile(rb"(?:" + _ELEMENT + rb")*+")
_TWO_ELEMENTS = re.compile(rb"(?:" + _ELEMENT + rb"){2}")
_ANYTHING = re.compile(rb'(?s)(?:[^"]++|"(?:[^"\\]|\\.){0,1000}+")*+')
"""Whatever stands between long strings."""

_ANY_CONTENT = re.compile(rb'(?s)(?:[^"\\]|\\.)*+')


class Skeleton:
    """A body without its longest parts, and these. `written` is what is left, as long as the marks allow."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._kept: list[bytes] = []
        self._done = self._length = 0
        self._cuts, self._removed = [0], [0]
        self._mark, self._number = secrets.token_hex(16), secrets.randbits(64) << 64
        self._marked = re.compile(self._mark + "([0-9a-f]{8})")
        self._texts: dict[str, str] = {}
        self._runs: dict[int, list[Any]] = {}
        if len(body) > LONG_BYTES:
            try:
                self._walk()
            except ValueError:  # it is no UTF-8, or was wrong before: no more of it is looked at
                self._keep(self._done, len(body))
        self.written = b"".join(self._kept) if self._texts or self._runs else body

    def place(self, at: int) -> int:
        """Where in the body the byte `at` of the skeleton stands."""
        return at + self._removed[bisect_right(self._cuts, at) - 1]

    def text(self, text: str) -> str:
        """Put back what was cut out of a string, and forget it."""
        if not self._texts or self._mark not in text:
            return text
        parts = self._marked.split(text)
        parts[1::2] = [self._texts.pop(index) for index in parts[1::2]]
        return "".join(parts)

    def whole(self, value: Any) -> Any:
        """Put everything back, but for names of fields."""
        if not self._texts and not self._runs:
            return value
        root = [value]
        unseen: list[list[Any] | dict[str, Any]] = [root]
        while unseen:
            container = unseen.pop()
            if isinstance(container, list):
                self._put_back(container)
                places: Iterable[tuple[Any, Any]] = enumerate(container)
            else:
                places = list(container.items())
            for place, inner in places:
                if isinstance(inner, str):
                    container[place] = self.text(inner)
                elif isinstance(inner, (list, dict)):
                    unseen.append(inner)
        return root[0]

    def _put_back(self, elements: list[Any]) -> None:
        """Put runs back in their list: each as it is found, so that others go on between two."""
        if not any(type(element) is int and element in self._runs for element in elements):
            return
        short = elements[:]
        elements.clear()
        for element in short:
            run = self._runs.pop(element, None) if type(element) is int else None
            elements.extend((element,) if run is None else run)

    # ---- cutting ------------------------------------------------------------------------------------------

    def _walk(self) -> None:
        """Go over the body once; between two looks `at` is outside of strings."""
        body, at = self._body, 0
        while at < len(body):
            end = self._match(_ELEMENTS, at, PIECE)
            if end - at >= LEAST and self._cut_elements(at, end):
                at = end
                continue
            end = self._match(_ANYTHING, at, STEP)
            if end > at:
                self._keep(at, end)
                at = end
            else:
                at = self._pass_string(at)

    def _cut_elements(self, at: int, end: int) -> bool:
        """Cut elements of a list. Two stay before them: anywhere else than in a list the second is wrong."""
        two = _TWO_ELEMENTS.match(self._body, at, end)
        if two is None or two.end() == end:
            return False
        run = json.loads(f"[{self._body[two.end() : end - 1].decode()}]")
        self._keep(at, two.end())
        number = self._number + len(self._runs)
        self._runs[number] = run
        self._cut(two.end(), end - 1, str(number))
        self._keep(end - 1, end)
        return True

    def _pass_string(self, at: int) -> int:
        """Go over a string, and cut what is inside of it; gives where it ends, or the body."""
        body, opening = self._body, at
        at += 1
        self._keep(opening, at)
        while at < len(body) and body[at] != _QUOTE:
            end = self._whole_characters(self._match(_CONTENT, at, PIECE))
            if end - at < LEAST or not self._cut_text(at, end):
                end = self._match(_ANY_CONTENT, at, STEP)
                end = end if end > at else len(body)
                self._keep(at, end)
            at = end
        end = min(at + 1, len(body))
        self._keep(at, end)
        return end

    def _cut_text(self, at: int, end: int) -> bool:
        if end == len(self._body):
            return False  # the string has no end: the parser says where it looked for one
        text = json.loads(f'"{self._body[at:end].decode()}"')
        index = f"{len(self._texts):08x}"
        self._texts[index] = text
        self._cut(at, end, self._mark + index)
        return True

    def _whole_characters(self, end: int) -> int:
        """Go back to where a character of UTF-8 begins."""
        for _ in range(3):
            if end < len(self._body) and self._body[end] & 0xC0 == 0x80:
                end -= 1
        return end

    def _match(self, pattern: re.Pattern[bytes], at: int, length: int) -> int:
        found = pattern.match(self._body, at, at + length)
        return at if found is None else found.end()

    def _keep(self, start: int, end: int) -> None:
        self._kept.append(self._body[start:end])
        self._done = end
        self._length += end - start

    def _cut(self, start: int, end: int, mark: str) -> None:
        self._kept.append(mark.encode())
        self._done = end
        self._length += len(mark)
        self._cuts.append(self._length)
        self._removed.append(end - self._length)
