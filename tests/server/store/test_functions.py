"""The functions by themselves: arguments are checked before anything is written, keys may be missing."""

import re

import pytest
from redis.exceptions import ResponseError

from rlstm_server.store.redis_check import library_code
from rlstm_server.store.redis_client import LIBRARY, session_key, tenant_key

CHAIN, HASH = b"c" * 32, "b" * 64
SESSION_PARTS = ("head", "ops", "tomb", "named", "states")
TENANT_PARTS = ("names", "index", "ids", "creations")

# name: right arguments, then by place what is wrong there
SESSION_FUNCTIONS = {
    "create": (
        [CHAIN, "", b"info", b"state", 1000, b"answer", 1000],
        {0: ["", "short"], 3: [""], 4: ["0", "x", "-1"], 6: ["0", "1.5"]},
    ),
    "commit": (
        [b"op", HASH, "", 0, CHAIN, CHAIN, b"info", b"state", 1000, b"summary", b"details",
         1024, 1000, 100, 1000],
        {0: ["", "x" * 256], 1: ["", "zz", "z" * 64], 2: ["-1", "x"], 3: ["", "x"], 4: ["short"],
         5: ["short"], 7: [""], 8: ["0", "1.5"], 11: ["0"], 12: ["0"], 13: ["x"], 14: ["", "9" * 17]},
    ),
    "name_snapshot": (
        [b"name", 0, CHAIN, HASH, b"info", 16, 1000],
        {0: ["", "x" * 256], 1: ["x"], 2: ["short"], 3: ["short"], 5: ["0"], 6: ["0"]},
    ),
    "load": ([1000, 1, "", b""], {0: ["0", "x"]}),
    "recall": ([b"op", HASH, 1000, 1000], {2: ["0"], 3: ["0", "x"]}),
    "read_snapshot": ([b"name", 1000], {1: ["0"]}),
    "drop_snapshot": ([b"name", 1000], {1: ["0"]}),
    "confirm": ([1000], {0: ["0", "x"]}),
    "named": ([1000], {0: ["0"]}),
    "delete": ([1000], {0: ["0", "x"]}),
    "mark": ([], {}),
    "withdraw": ([], {}),
}  # fmt: skip
TENANT_FUNCTIONS = {
    "claim": (
        [b"op", HASH, "a" * 32, "", 1, 1, 1024, 1000],
        {0: ["", "x" * 256], 1: ["zz"], 2: ["", "a|b"], 4: ["x"], 5: ["x"], 6: ["0"], 7: ["0"]},
    ),
    "recall_creation": ([b"op", HASH, 1000], {2: ["0"]}),
    "release": (["a" * 32, "", ""], {}),
    "reindex": (["a" * 32, 1], {1: ["x"]}),
    "due": ([10], {0: ["0", "x"]}),
    "page": ([0, "", 10], {0: ["x"], 2: ["0"]}),
}
WITHOUT_KEYS = {
    "create": b"OK", "claim": b"OK", "release": b"OK", "reindex": b"OK", "due": b"OK",
    "page": b"OK", "mark": b"OK", "recall_creation": b"UNKNOWN",
    "withdraw": b"OK",
}  # fmt: skip


def all_functions(build):
    """Return name, keys, right arguments and wrong ones of every function."""
    key = build.creation().key
    of_session = [session_key(key, part) for part in SESSION_PARTS]
    of_tenant = [tenant_key(build.tenant, part) for part in TENANT_PARTS]
    tables = ((SESSION_FUNCTIONS, of_session), (TENANT_FUNCTIONS, of_tenant))
    return [(name, keys, *row) for table, keys in tables for name, row in table.items()]


def test_every_function_is_tried_here(build):
    """The table above has all of the library's, under names that carry its number."""
    registered = re.findall(r"^register\('(\w+)'", library_code(), re.MULTILINE)

    assert sorted(registered) == sorted(name for name, *_ in all_functions(build))
    assert library_code().startswith(f"#!lua name={LIBRARY}\n")
    assert f"'{LIBRARY}_' .. name" in library_code()


@pytest.mark.parametrize("name", [*SESSION_FUNCTIONS, *TENANT_FUNCTIONS])
def test_a_function_checks_its_arguments_first(admin, build, name):
    """A wrong argument, one too few or one too many is refused by the server, before anything is written."""
    [(keys, right, wrong)] = [row for tried, *row in all_functions(build) if tried == name]
    cases = [[*right, "more"], right[:-1]] if len(right) > 1 else []
    cases += [[*right[:at], value, *right[at + 1 :]] for at, values in wrong.items() for value in values]
    for arguments in cases:
        with pytest.raises(ResponseError, match="INVALID"):
            admin.fcall(f"{LIBRARY}_{name}", len(keys), *keys, *arguments)
    assert list(admin.scan_iter(f"*{build.tenant}*")) == []


def test_no_function_fails_without_its_keys(admin, build):
    """Where nothing is stored each says so, or begins to store."""
    for name, keys, right, _ in all_functions(build):
        fresh = [key.replace(build.tenant, build.tenant + name.replace("_", "")) for key in keys]

        reply = admin.fcall(f"{LIBRARY}_{name}", len(fresh), *fresh, *right)

        assert reply[0] == WITHOUT_KEYS.get(name, b"NOT_FOUND"), name


def test_a_release_with_another_library_works_beside(admin):
    """What another release has installed under its own number stays, and stays callable."""
    older = library_code().replace(LIBRARY, "rlstm_v0")
    admin.function_load(older, replace=True)

    admin.function_load(library_code(), replace=True)

    assert admin.fcall("rlstm_v0_due", 4, *(tenant_key("nobody", part) for part in TENANT_PARTS), 1) == [
        b"OK"
    ]
    admin.function_delete("rlstm_v0")
