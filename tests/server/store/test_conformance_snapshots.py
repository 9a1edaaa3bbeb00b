"""What every store promises of named snapshots: copies of a state that stay as they were."""

import dataclasses

import pytest

from rlstm_server.errors import Gone, NotFound, SnapshotExists, TooLarge
from rlstm_server.store.base import Limits, NamedSnapshot, Position, Stale


@pytest.fixture
async def small(kit):
    """A store that keeps two named snapshots a session."""
    made = kit.make(Limits(named_snapshots=2))
    yield made
    await made.close()


async def test_a_named_snapshot_stays_as_it_was(small, build):
    """The session goes on; its copy under a name has the version, info and state of then."""
    key, start = await build.session(small)
    named = await small.name_snapshot(key, "zero|0", start, b'{"a":"|"}')
    at = (await small.commit(build.commit(key, start))).position
    second = await small.name_snapshot(key, "a", at, b"{}")

    assert (named.name, named.version, named.info, named.state_bytes) == ("zero|0", 0, b'{"a":"|"}', 7)
    assert await small.named_snapshots(key) == [named, second]
    assert await small.read_snapshot(key, "zero|0") == (named, b"state 0")
    assert await small.read_snapshot(key, "a") == (second, b"state 1")
    assert (await small.load_head(key)).position == at


async def test_the_same_name_for_the_same_version_changes_nothing(small, build):
    """Sent again, also when the session has moved on; another version may not have it."""
    key, start = await build.session(small)
    named = await small.name_snapshot(key, "n", start, b"first")
    at = (await small.commit(build.commit(key, start))).position

    assert await small.name_snapshot(key, "n", start, b"second") == named
    with pytest.raises(SnapshotExists):
        await small.name_snapshot(key, "n", at, b"{}")
    assert await small.named_snapshots(key) == [named]


async def test_only_the_present_can_be_named(small, build):
    """A state of another version or history is stale."""
    key, start = await build.session(small)
    at = (await small.commit(build.commit(key, start))).position

    for wrong in (start, Position(1, b"z" * 32), Position(2, at.chain)):
        assert await small.name_snapshot(key, "n", wrong, b"{}") == Stale(current=at)

    assert isinstance(await small.name_snapshot(key, "n", at, b"{}"), NamedSnapshot)


async def test_named_snapshots_are_limited(small, build):
    """Over the limit none is named, and both numbers are told; one dropped makes room for another."""
    key, start = await build.session(small)
    for name in "ab":
        await small.name_snapshot(key, name, start, b"{}")

    with pytest.raises(TooLarge) as refused:
        await small.name_snapshot(key, "c", start, b"{}")
    await small.drop_snapshot(key, "a")
    await small.drop_snapshot(key, "a")
    await small.name_snapshot(key, "c", start, b"{}")

    assert (refused.value.given, refused.value.limit) == (3, 2)
    assert [named.name for named in await small.named_snapshots(key)] == ["b", "c"]
    with pytest.raises(NotFound, match="snapshot"):
        await small.read_snapshot(key, "a")


@pytest.mark.parametrize(("name", "info"), [("", b"{}"), ("é" * 128, b"{}"), ("n", b"x" * (1 << 20 | 1))])
async def test_a_name_or_info_that_cannot_be_stored_is_refused(small, build, name, info):
    """Before anything is sent."""
    key, start = await build.session(small)

    with pytest.raises(ValueError, match=r"name|info"):
        await small.name_snapshot(key, name, start, info)


@pytest.mark.parametrize("end", ["delete", "expire"])
async def test_snapshots_end_with_their_session(kit, small, build, end):
    """None outlives the session, also where its id is used again."""
    creation = build.creation()
    await small.create(creation)
    key, start = creation.key, creation.position
    await small.name_snapshot(key, "n", start, b"{}")
    if end == "delete":
        await small.delete(key)
    else:
        await small.commit(build.commit(key, start, ttl_ms=1))
        kit.wait(3)

    for call in (
        small.name_snapshot(key, "m", start, b"{}"),
        small.named_snapshots(key),
        small.read_snapshot(key, "n"),
        small.drop_snapshot(key, "n"),
    ):
        with pytest.raises(Gone):
            await call
    await small.create(dataclasses.replace(creation, operation_id="again"))
    assert await small.named_snapshots(key) == []
