"""What every store promises of creations: once, under one name, and for as long as they are remembered."""

import asyncio
import dataclasses

import pytest

from rlstm_server.errors import Gone, NotFound, SessionExists
from rlstm_server.store.base import Created, CreationReplayed, Limits, Mismatch


async def test_a_created_session_is_there(store, build):
    """A new session is at version 0 with what it was given."""
    creation = build.creation(name="diary", info=b'{"a":1}', state=b"\x00\xff", ttl_ms=60_000)

    outcome = await store.create(creation)

    head = await store.load_head(creation.key)
    assert outcome == Created(head=head)
    assert (head.version, head.name, head.info, head.state) == (0, "diary", b'{"a":1}', b"\x00\xff")
    assert head.expires_at_ms - head.created_at_ms == head.ttl_ms == 60_000


async def test_a_repeated_creation_makes_one_session(store, build):
    """The same operation id, even with a fresh session id, is told of the first session."""
    first = build.creation(operation_id="key", answer=b"first")
    await store.create(first)

    outcome = await store.create(build.creation(operation_id="key", answer=b"second"))

    assert outcome == CreationReplayed(session_id=first.key.session_id, answer=b"first")
    assert await store.count(build.tenant) == 1


async def test_a_creation_with_another_body_is_a_mismatch(store, build):
    """An operation id cannot be used for two different creations."""
    await store.create(build.creation(operation_id="key"))

    outcome = await store.create(build.creation(operation_id="key", body_hash=b"x" * 32))

    assert outcome == Mismatch()
    assert await store.count(build.tenant) == 1


async def test_a_repeated_creation_of_a_deleted_session_says_so(store, build):
    """A deleted session is not made again by a repeat of its creation."""
    first = build.creation(operation_id="key")
    await store.create(first)
    await store.delete(first.key)

    with pytest.raises(Gone, match="deleted"):
        await store.create(build.creation(operation_id="key"))


async def test_what_became_of_a_creation_can_be_asked(store, build):
    """The session that was made, a mismatch, nothing, or that the session has ended."""
    first = build.creation(operation_id="key", answer=b"first")
    await store.create(first)
    made = CreationReplayed(session_id=first.key.session_id, answer=b"first")

    assert await store.recall_creation(build.tenant, "key", first.body_hash) == made
    assert await store.recall_creation(build.tenant, "key", b"x" * 32) == Mismatch()
    assert await store.recall_creation(build.tenant, "another", first.body_hash) is None
    assert await store.count(build.tenant) == 1
    await store.delete(first.key)
    with pytest.raises(Gone, match="deleted"):
        await store.recall_creation(build.tenant, "key", first.body_hash)


async def test_many_creations_at_once_make_one_session(store, build):
    """Twenty creations with the same operation id, at the same time, make one session."""
    creations = [build.creation(operation_id="key") for _ in range(20)]

    outcomes = await asyncio.gather(*(store.create(creation) for creation in creations))

    ids = {o.head.position.chain if isinstance(o, Created) else None for o in outcomes} - {None}
    assert len(ids) == 1
    assert sum(isinstance(outcome, CreationReplayed) for outcome in outcomes) == 19
    assert len((await store.list(build.tenant)).sessions) == 1


async def test_creations_are_remembered_up_to_a_limit(kit, build):
    """Only the newest creations of a tenant are known by their operation id."""
    store = kit.make(Limits(operations=4))
    for number in range(5):
        await store.create(build.creation(operation_id=f"key {number}"))

    forgotten = await store.create(build.creation(operation_id="key 0"))
    known = await store.create(build.creation(operation_id="key 4"))

    assert isinstance(forgotten, Created)
    assert isinstance(known, CreationReplayed)
    await store.close()


async def test_old_creations_are_forgotten(kit, build):
    """A creation is not known by its operation id after its time."""
    store = kit.make(Limits(operation_age_ms=50))
    await store.create(build.creation(operation_id="key"))
    kit.wait(60)

    outcome = await store.create(build.creation(operation_id="key"))

    assert isinstance(outcome, Created)
    await store.close()


async def test_names_are_unique_per_tenant(store, build):
    """A name is taken within its tenant, and free in every other."""
    await store.create(build.creation(name="diary"))
    other = dataclasses.replace(build, tenant=build.tenant + "x")

    with pytest.raises(SessionExists):
        await store.create(build.creation(name="diary"))

    assert isinstance(await store.create(other.creation(name="diary")), Created)
    assert await store.count(build.tenant) == 1


async def test_one_of_many_takes_a_name(store, build):
    """Of ten creations of one name at the same time, one succeeds."""
    creations = [build.creation(name="diary") for _ in range(10)]

    outcomes = await asyncio.gather(*(store.create(c) for c in creations), return_exceptions=True)

    assert sum(isinstance(outcome, Created) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, SessionExists) for outcome in outcomes) == 9


@pytest.mark.parametrize("end", ["delete", "expire"])
async def test_a_name_is_free_when_its_session_has_ended(kit, store, build, end):
    """The name of a session that was deleted or has expired can be used again."""
    first = build.creation(name="diary", ttl_ms=200)
    await store.create(first)
    if end == "delete":
        await store.delete(first.key)
    kit.wait(210)
    with pytest.raises(NotFound):
        await store.find(build.tenant, "diary")

    second = build.creation(name="diary")
    await store.create(second)

    assert await store.find(build.tenant, "diary") == second.key.session_id
