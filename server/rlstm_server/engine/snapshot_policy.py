"""When a session is worth a snapshot: plain arithmetic over what it would cost to do its log again."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Lead:
    """How far a state is ahead of the base that it would be rebuilt from.

    base     version of that base
    records  operations since then
    tokens   that they read
    seconds  that they took on this server, or took to do again: so long would it take once more
    """

    base: int = 0
    records: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def plus(self, tokens: int, seconds: float) -> "Lead":
        """One operation further."""
        return Lead(
            base=self.base,
            records=self.records + 1,
            tokens=self.tokens + tokens,
            seconds=self.seconds + seconds,
        )

    def since(self, kept: "Lead") -> "Lead":
        """What is left once the state that was so far ahead of the same base is the base."""
        return Lead(
            base=kept.base + kept.records,
            records=self.records - kept.records,
            tokens=self.tokens - kept.tokens,
            seconds=max(0.0, self.seconds - kept.seconds),
        )


@dataclass(frozen=True, kw_only=True)
class SnapshotPolicy:
    """A snapshot is due when the log takes `seconds` to do again: about two, with what comes meanwhile.

    Not for fewer than `least_tokens`, however slow the server is just now: a snapshot costs as much as
    learning from some. At `most_tokens` or `most_records` always: another server may be slower, and the store
    keeps only so many records after a base.
    """

    seconds: float = 1.5
    least_tokens: int = 64
    most_tokens: int = 65_536
    most_records: int = 512

    def due(self, lead: Lead) -> bool:
        """Whether a state that is so far ahead of its base should become the base."""
        if lead.records >= self.most_records or lead.tokens >= self.most_tokens:
            return True
        return lead.tokens >= self.least_tokens and lead.seconds >= self.seconds
