"""What pydantic finds wrong with a value, in plain words: what is allowed, and what was given.

Of what was given a number is repeated, of anything else its kind: a text could be anybody's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

KINDS: Final = {
    "NoneType": "null",
    "bool": "true or false",
    "dict": "an object",
    "float": "a number",
    "int": "a whole number",
    "list": "a list",
    "model": "an object",
    "str": "a text",
    "string": "a text",
}
"""What a sentence calls JSON's values, by Python's and by pydantic's names."""

WRONG_TYPE: Final = re.compile(rf"({'|'.join(KINDS)})_(?:attributes_type|from_float|parsing|type)")
"""How pydantic calls it that a value is none of these."""

ALLOWED: Final = {
    "finite_number": "must be a finite number",
    "greater_than": "must be over {gt:,.16g}",
    "greater_than_equal": "must be at least {ge:,.16g}",
    "less_than": "must be below {lt:,.16g}",
    "less_than_equal": "must be at most {le:,.16g}",
    "literal_error": "must be {expected}",
    "string_pattern_mismatch": "must have the form {pattern}",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must not be empty",
    "too_long": "must have at most {max_length} entries",
    "too_short": "must not be empty",
}
LONGEST: Final = 24
"""Characters of a number that is repeated."""


def reason(fault: Mapping[str, Any]) -> str:
    """Say what is wrong, as a sentence goes on after the name of a field."""
    kind = fault["type"]
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        return "there is no such field"
    if wanted := WRONG_TYPE.match(kind):
        return f"must be {KINDS[wanted[1]]}{_given(fault)}"
    if kind in ALLOWED:
        allowed = ALLOWED[kind].format(**fault.get("ctx", {}))
        return allowed.replace("^", "").replace("$", "") + _given(fault)
    return str(fault["msg"]).removeprefix("Value error, ")


def _given(fault: Mapping[str, Any]) -> str:
    """Tell what was given, where that is known and not obvious."""
    kind = fault["type"]
    if "input" not in fault or kind.endswith("_short"):
        return ""
    value = fault["input"]
    if kind.endswith("_long"):
        return f"; {len(value):,} were given"
    if isinstance(value, bool):
        return f"; {str(value).lower()} was given"
    is_number = isinstance(value, int | float) or kind.startswith(("greater", "less"))
    if is_number and len(str(value)) <= LONGEST:
        return f"; {value} was given"
    if isinstance(value, str) and not WRONG_TYPE.match(kind):
        return "; another text was given"
    return f"; {KINDS.get(type(value).__name__, 'something else')} was given"
