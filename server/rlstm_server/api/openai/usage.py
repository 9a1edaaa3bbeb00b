"""What a completion read and made, in tokens."""

from collections.abc import Iterable

from rlstm_server.schemas import EndEvent


def usage(prompts: Iterable[int], ends: Iterable[EndEvent]) -> dict[str, int]:
    """Count each prompt's tokens once, and every choice's new ones."""
    read = sum(prompts)
    made = sum(end.completion_tokens for end in ends)
    return {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}
