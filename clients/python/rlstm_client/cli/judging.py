"""What a watch says of a line, from the lines before it. No input, no output, and all it knows is one note.

A line's template is what is left of it without its fields, the words that hold a digit. A line of a known
template is explained and costs no model's time, nor does one that differs from a well known template in one
word, in the order of its words, or by a field that is longer than ever: these are alarms. Of any other line a
session is asked what it costs; its score is the share of its bits that learning does not save.
"""

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any, Final, Literal, NamedTuple
from zlib import crc32

from rlstm_client.cli.exits import CommandError

THRESHOLD: Final = 0.82
WARM_UP: Final = 50
SPARE_BITS: Final = 8.0  # what a byte costs of which nothing is known
PATIENCE: Final = 1  # lines of too high a score in a row that teach nothing: what goes on is the log's own
WELL_KNOWN: Final = 30  # lines of a template
LONGER: Final = 2  # characters by which a field is longer than any before it, to be an alarm
FEWEST_WORDS: Final = 4  # of a line, one of which may be the only one that is wrong
MOST_WORDS: Final = 100  # of a line, and fields, that are compared
ROOM: Final = 48_000  # characters that all templates take, of the 64 kB of a note
MOST_ALIKE: Final = 300  # groups of like alarms that are counted

_FIELD: Final = re.compile(r"""[^\s,;:=\[\]()|"'<>]*\d[^\s,;:=\[\]()|"'<>]*""")
_GAP: Final = re.compile(r"[\s|]+")
_CHARACTERS: Final = digits + ascii_uppercase + ascii_lowercase
_OF_A_TEMPLATE: Final = 32  # characters in a note beside words and lengths
_FORMAT: Final = 1

Reason = Literal["score", "field", "word", "order"]


class Template(NamedTuple):
    """What is known of the lines of one template.

    lines    how many there were
    words    two characters for each of its words
    lengths  one for each field: the greatest length
    """

    lines: int
    words: str
    lengths: str


class Seen(NamedTuple):
    """A line, compared with the templates before it: its own, and what is wrong with it, and where.

    ``new`` says that no template explains it, nor what is wrong with it: it has to be asked what it costs.
    """

    name: str
    template: Template
    reason: Reason | None
    new: bool
    spans: Sequence[tuple[int, int]] = ()


class Verdict(NamedTuple):
    """What is said of a line: why it is an alarm, if it is one, whether it is learned, and its score."""

    reason: Reason | None
    learn: bool
    score: float | None


@dataclass
class Judge:
    """Judges each line by those before it.

    threshold  the highest score that is no alarm
    warm_up    lines before the first alarm
    lines      that were judged
    in_a_row   lines of too high a score at the end of them
    templates  by name, that of the newest line last
    alike      how many alarms there were of a template and a reason, the newest last
    """

    threshold: float = THRESHOLD
    warm_up: int = WARM_UP
    lines: int = 0
    in_a_row: int = 0
    templates: dict[str, Template] = field(default_factory=dict)
    alike: dict[str, int] = field(default_factory=dict)

    def compare(self, text: str) -> Seen:
        """Compare a line with what is known; it is not counted yet."""
        found = [*islice(_FIELD.finditer(text), MOST_WORDS)]
        fields = [match[0] for match in found]
        masked = " ".join(_FIELD.sub("#", text).split())
        name = b64encode(blake2b(f"{len(fields)} {masked}".encode(), digest_size=6).digest()).decode()
        lengths = _written(map(len, fields))
        known = self.templates.get(name)
        warm = self.lines >= self.warm_up
        if known is not None:
            longer = _longer(lengths, known.lengths) if warm and known.lines >= WELL_KNOWN else []
            longest = "".join(max(pair) for pair in zip(known.lengths, lengths, strict=True))
            spans = [found[at].span() for at in longer]
            return Seen(name, known._replace(lengths=longest), "field" if longer else None, False, spans)
        words = "".join(map(_hashed, _GAP.split(masked)[:MOST_WORDS]))
        reason, places = self._unlike(_pairs(words)) if warm else (None, [])
        there = spans_of_words(text) if places else []
        return Seen(name, Template(0, words, lengths), reason, reason is None, [there[at] for at in places])

    def judge(self, seen: Seen, bits: tuple[float, float] | None) -> Verdict:
        """Judge a line, which is then one of those before the next.

        ``bits`` are what a new one costs what was learned, and the model as loaded.
        """
        score = None if bits is None else round(bits[0] / (SPARE_BITS + bits[1]), 4)
        reason = seen.reason
        if score is not None and score > self.threshold and self.lines >= self.warm_up:
            reason = "score"
        self.lines += 1
        if reason is not None:
            group = f"{seen.name} {reason}"
            self.alike[group] = self.alike.pop(group, 0) + 1
            if len(self.alike) > MOST_ALIKE:
                del self.alike[next(iter(self.alike))]
        self.in_a_row = self.in_a_row + 1 if reason == "score" else 0
        if 1 <= self.in_a_row <= PATIENCE:
            return Verdict(reason, False, score)
        self.templates.pop(seen.name, None)
        self.templates[seen.name] = seen.template._replace(lines=seen.template.lines + 1)
        if seen.template.lines == 0:
            self._forget()
        return Verdict(reason, seen.new, score)

    def _unlike(self, words: Sequence[str]) -> tuple[Reason | None, list[int]]:
        """Say what alone makes a line another than known ones, and which words.

        That is the order, or a word that never changed.
        """
        alike = [(one.lines, _pairs(one.words)) for one in self.templates.values()]
        alike = [(lines, other) for lines, other in alike if len(other) == len(words) >= FEWEST_WORDS]
        for _, other in alike:
            if words != other and sorted(words) == sorted(other):
                return "order", _unequal(words, other)
        for lines, other in alike:
            places = _unequal(words, other)
            if lines >= WELL_KNOWN and len(places) == 1:
                changed = any(_unequal(third, other) == places for _, third in alike)
                return (None, []) if changed else ("word", places)
        return None, []

    def _forget(self) -> None:
        """Forget the templates that did not come for longest, where all are too many for a note."""
        size = sum(_OF_A_TEMPLATE + len(one.words) + len(one.lengths) for one in self.templates.values())
        while size > ROOM:
            oldest = self.templates.pop(next(iter(self.templates)))
            size -= _OF_A_TEMPLATE + len(oldest.words) + len(oldest.lengths)

    def note(self, **more: Any) -> str:
        """All that it knows, and more that belongs to it, as text."""
        told = {"watch": _FORMAT, "lines": self.lines, "in_a_row": self.in_a_row, "alike": self.alike}
        return json.dumps(told | more | {"templates": self.templates}, separators=(",", ":"))


def read_note(note: str, judge: Judge) -> dict[str, Any]:
    """Have a judge know what another wrote down, and return the whole; of an empty note nothing.

    Raises:
        CommandError: it is no note of a watch, or of another form.
    """
    if not note:
        return {}
    try:
        told: dict[str, Any] = json.loads(note)
        if told["watch"] != _FORMAT:
            raise ValueError
        judge.lines, judge.in_a_row, judge.alike = told["lines"], told["in_a_row"], told.get("alike", {})
        judge.templates = {name: Template(*known) for name, known in told["templates"].items()}
    except (ValueError, KeyError, TypeError) as error:
        raise CommandError("the session's note is not one that this watch can read") from error
    return told


def _written(numbers: Iterable[int]) -> str:
    """Numbers as characters; a greater one is as the last."""
    return "".join(_CHARACTERS[min(number, len(_CHARACTERS) - 1)] for number in numbers)


def _longer(lengths: str, longest: str) -> list[int]:
    """The fields that are much longer than they ever were."""
    pairs = enumerate(zip(lengths, longest, strict=True))
    return [at for at, (new, old) in pairs if _CHARACTERS.index(new) - _CHARACTERS.index(old) >= LONGER]


def spans_of_words(text: str) -> list[tuple[int, int]]:
    """Where the words of a line that are compared begin and end, in characters."""
    at, end, spans = len(text) - len(text.lstrip()), len(text.rstrip()), []
    for gap in _GAP.finditer(text, at, end):
        spans.append((at, gap.start()))
        at = gap.end()
    return [*spans, (at, end)][:MOST_WORDS]


def _hashed(word: str) -> str:
    """A word as two characters."""
    high, low = divmod(crc32(word.encode()) % len(_CHARACTERS) ** 2, len(_CHARACTERS))
    return _CHARACTERS[high] + _CHARACTERS[low]


def _pairs(words: str) -> list[str]:
    return [words[at : at + 2] for at in range(0, len(words), 2)]


def _unequal(words: Sequence[str], others: Sequence[str]) -> list[int]:
    """The places at which two lines of as many words differ."""
    return [at for at, (one, other) in enumerate(zip(words, others, strict=True)) if one != other]
