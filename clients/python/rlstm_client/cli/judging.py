"""What a watch says of a line, from the lines before it. No input, no output, and all of it is one note.

A line is *explained* where its template is known and no field is longer than any before it. Only what is not
explained costs a model's time: its score is the share of its bits that learning does not save.
"""

import json
import re
import statistics
from base64 import b64encode
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any, Final, Literal, NamedTuple, Self

from rlstm_client.cli.exits import CommandError

HISTORY: Final = 500  # scores that the threshold remembers
PERCENT: Final = 98  # the quantile of them that it starts from
MARGIN: Final = 0.7
WARM_UP: Final = 50
SPARE_BITS: Final = 8.0  # what a byte costs of which nothing is known
PATIENCE: Final = 3  # alarms in a row that teach nothing
LONGEST_ALARM: Final = 20  # alarms in a row after which the scores before them say nothing any more
LINES_OF_FIELDS: Final = 20  # of a template, before the lengths of its fields are held against it
LONGER: Final = 2  # characters by which a field is longer than any before it, to be an alarm
ROOM: Final = 32_000  # characters that all templates take, of the 64 kB of a note
MOST_FIELDS: Final = 100  # of a line, that are looked at

_FIELD: Final = re.compile(r"""[^\s,;:=\[\]()|"'<>]*\d[^\s,;:=\[\]()|"'<>]*""")
_COUNTS: Final = digits + ascii_uppercase + ascii_lowercase
"""Numbers as characters; a greater one is as the last."""

_FORMAT: Final = 1

_OF_A_TEMPLATE: Final = 14  # characters beside its numbers

Reason = Literal["score", "field"]


class Template(NamedTuple):
    """What lines of one kind have in common: all but their fields, the words that hold a digit."""

    name: str
    lengths: str

    @classmethod
    def of(cls, text: str) -> Self:
        """The template of a line, and how long each of its fields is."""
        fields = _FIELD.findall(text)[:MOST_FIELDS]
        rest = f"{len(fields)} {_FIELD.sub('#', text)}".encode("utf-8", "replace")
        digest = blake2b(rest, digest_size=6).digest()
        return cls(b64encode(digest).decode(), _written(map(len, fields)))


class Verdict(NamedTuple):
    """What is said of a line: why it is an alarm, if it is one, whether it is learned, and from what."""

    alarm: Reason | None
    learn: bool
    score: float
    threshold: float | None


@dataclass
class Judge:
    """Judges each line by those before it.

    margin     how far from the usual score to 1 the threshold lies
    warm_up    lines before the first alarm
    lines      that were judged
    templates  of lines that were no alarm: how many there were, and the longest of each field; the one that
               came last is the last
    scores     of the newest lines that were no alarm; of an explained one it is 0
    in_a_row   alarms at the end of what was judged
    """

    margin: float = MARGIN
    warm_up: int = WARM_UP
    lines: int = 0
    templates: dict[str, str] = field(default_factory=dict)
    scores: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    in_a_row: int = 0

    @property
    def limit(self) -> float | None:
        """The highest score that is no alarm; None while there is too little history."""
        if self.lines < self.warm_up or len(self.scores) < 2:
            return None
        usual = statistics.quantiles(self.scores, n=100, method="inclusive")[PERCENT - 1]
        return usual + self.margin * max(0.0, 1 - usual)

    def knows(self, template: Template) -> bool:
        """Whether the lines of a template are explained, but for their fields."""
        return template.name in self.templates

    def judge(self, template: Template, bits: tuple[float, float] | None) -> Verdict:
        """Judge a line, which is then one of those before the next.

        ``bits`` are what it cost what was learned, and the model as loaded; None of a known template.
        """
        known = self.templates.get(template.name)
        score = 0.0 if bits is None else round(bits[0] / (SPARE_BITS + bits[1]), 4)
        limit = self.limit
        alarm: Reason | None = None
        if known and self.lines >= self.warm_up and _longer(template, known):
            alarm = "field"
        elif limit is not None and score > limit:
            alarm = "score"
        self.lines += 1
        self.in_a_row = self.in_a_row + 1 if alarm == "score" else 0
        if self.in_a_row > LONGEST_ALARM:  # another log: what was before it says nothing of it
            self.scores.clear()
            self.in_a_row, alarm = 0, None
        if alarm != "score":
            self.scores.append(score)
        if alarm != "score" or self.in_a_row > PATIENCE:
            self._remember(template, known)
            return Verdict(alarm, not known, score, limit)
        return Verdict(alarm, False, score, limit)

    def _remember(self, template: Template, known: str | None) -> None:
        """Count a line of a template, and forget those that did not come for longest where they are many."""
        count, longest = (known[0], known[1:]) if known else ("0", template.lengths)
        longest = "".join(max(pair) for pair in zip(longest, template.lengths, strict=True))
        self.templates.pop(template.name, None)
        self.templates[template.name] = _written([_COUNTS.index(count) + 1]) + longest
        while (
            not known and _OF_A_TEMPLATE * len(self.templates) + sum(map(len, self.templates.values())) > ROOM
        ):
            del self.templates[next(iter(self.templates))]

    def note(self, **more: Any) -> str:
        """All that it knows, and more that belongs to it, as text."""
        told = {"watch": _FORMAT, "lines": self.lines, "in_a_row": self.in_a_row}
        return json.dumps(
            {**told, **more, "scores": [*self.scores], "templates": self.templates}, separators=(",", ":")
        )


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
        judge.lines, judge.in_a_row, judge.templates = told["lines"], told["in_a_row"], told["templates"]
        judge.scores.extend(told["scores"])
    except (ValueError, KeyError, TypeError) as error:
        raise CommandError("the session's note is not one that this watch can read") from error
    return told


def _written(numbers: Iterable[int]) -> str:
    return "".join(_COUNTS[min(number, len(_COUNTS) - 1)] for number in numbers)


def _longer(template: Template, known: str) -> bool:
    """Whether a field is much longer than it ever was in many lines."""
    if _COUNTS.index(known[0]) < LINES_OF_FIELDS:
        return False
    pairs = zip(template.lengths, known[1:], strict=True)
    return any(_COUNTS.index(new) - _COUNTS.index(old) >= LONGER for new, old in pairs)
