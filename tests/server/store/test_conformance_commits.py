"""What every store promises of commits: on one history, once, and with an answer for each repeat."""

import asyncio
import dataclasses

from rlstm_server.store.base import (
    Committed,
    Limits,
    Mismatch,
    Moved,
    Position,
    Replayed,
    Stale,
)

SMALL = Limits(operations=4, details_bytes=100)


async def test_a_commit_moves_the_session_on(store, build):
    """A commit gives the next version, its state and its info."""
    key, start = await build.session(store)
    commit = build.commit(key, start, operation_id="key", info=b'{"n":1}', state=b"\x00s")

    outcome = await store.commit(commit)

    head = await store.load_head(key)
    assert outcome == Committed(position=start.after("key", b"b" * 32), expires_at_ms=head.expires_at_ms)
    assert (head.position, head.info, head.state) == (outcome.position, b'{"n":1}', b"\x00s")


async def test_a_commit_on_an_old_version_is_stale(store, build):
    """Work done on a version that is not the head changes nothing."""
    key, start = await build.session(store)
    first = await store.commit(build.commit(key, start))

    outcome = await store.commit(build.commit(key, start, state=b"other"))

    assert outcome == Stale(current=first.position)
    assert (await store.load_head(key)).state == b"state 1"


async def test_a_commit_on_another_history_is_stale(store, build):
    """The right number with another chain, or the reverse, is another history: it changes nothing."""
    key, start = await build.session(store)

    other_chain = await store.commit(build.commit(key, Position(0, b"z" * 32)))
    other_number = await store.commit(build.commit(key, Position(1, start.chain)))

    assert other_chain == other_number == Stale(current=start)
    assert (await store.load_head(key)).version == 0


async def test_a_repeat_gets_the_stored_answer(store, build):
    """An operation takes effect once: its repeat gets the first answer, whatever it was computed on."""
    key, start = await build.session(store)
    first = build.commit(key, start, operation_id="key", details=b"the scores")
    one = await store.commit(first)
    two = await store.commit(build.commit(key, one.position))

    on_old = await store.commit(first)
    on_new = await store.commit(build.commit(key, two.position, operation_id="key"))

    assert on_old == on_new
    assert on_old == Replayed(version=1, details=b"the scores", summary=b"summary 1", current=two.position)
    assert (await store.load_head(key)).version == 2


async def test_a_known_id_with_another_body_is_a_mismatch(store, build):
    """An operation id cannot be used for two different operations."""
    key, start = await build.session(store)
    one = await store.commit(build.commit(key, start, operation_id="key"))

    outcome = await store.commit(build.commit(key, one.position, operation_id="key", body_hash=b"x" * 32))

    assert outcome == Mismatch()
    assert (await store.load_head(key)).version == 1


async def test_what_became_of_an_operation_can_be_asked(store, build):
    """For a repeat that can no longer be computed: its first answer, a mismatch, or that nothing is known."""
    key, start = await build.session(store)
    first = build.commit(key, start, operation_id="key", details=b"the scores")
    one = await store.commit(first)
    answer = Replayed(version=1, details=b"the scores", summary=b"summary 1", current=one.position)

    assert await store.recall(key, "key", first.body_hash) == answer
    assert await store.recall(key, "key", b"x" * 32) == Mismatch()
    assert await store.recall(key, "another", first.body_hash) is None
    assert (await store.load_head(key)).version == 1


async def test_if_match_refuses_another_version(store, build):
    """The version that a client insists on is compared with the store's, before anything else is."""
    key, start = await build.session(store)
    one = await store.commit(build.commit(key, start))

    stale_too = await store.commit(build.commit(key, start, if_match=0))
    right_state = await store.commit(build.commit(key, one.position, if_match=7))
    right = await store.commit(build.commit(key, one.position, if_match=1))

    assert stale_too == right_state == Moved(current=1)
    assert right.position.version == 2


async def test_a_repeat_comes_before_if_match(store, build):
    """A repeat with the same If-Match, which has moved since, still gets its answer."""
    key, start = await build.session(store)
    first = build.commit(key, start, if_match=0)
    await store.commit(first)

    assert isinstance(await store.commit(first), Replayed)


async def test_the_newest_details_are_kept_and_older_ones_within_a_bound(kit, build):
    """However long the newest are, they are whole; of the others the oldest go first; summaries stay."""
    store = kit.make(SMALL)
    key, at = await build.session(store)
    commits, kept = [], []
    for size in (60, 40, 0, 500, 41, 60):
        commits.append(build.commit(key, at, details=b"d" * size))
        at = (await store.commit(commits[-1])).position
        repeats = [await store.commit(commit) for commit in commits[-4:]]
        kept.append([None if one.details is None else len(one.details) for one in repeats])

    assert kept == [[60], [60, 40], [60, 40, 0], [60, 40, 0, 500], [None, 0, None, 41], [0, None, 41, 60]]
    assert [repeat.summary for repeat in repeats] == [b"summary %d" % n for n in (3, 4, 5, 6)]
    await store.close()


async def test_operations_are_remembered_up_to_a_limit(kit, build):
    """Only the newest operation ids are known; a forgotten one is an operation like any other."""
    store = kit.make(SMALL)
    key, at = await build.session(store)
    for number in range(5):
        at = (await store.commit(build.commit(key, at, operation_id=f"key {number}"))).position

    known = await store.commit(build.commit(key, at, operation_id="key 1"))
    forgotten = await store.commit(build.commit(key, at, operation_id="key 0"))

    assert isinstance(known, Replayed)
    assert isinstance(forgotten, Committed)
    await store.close()


async def test_old_operations_are_forgotten_but_not_their_successors(kit, build):
    """After its time an id may be used anew, and is then known for as long as any other."""
    store = kit.make(dataclasses.replace(SMALL, operation_age_ms=800))
    key, at = await build.session(store)
    at = (await store.commit(build.commit(key, at, operation_id="key"))).position
    kit.wait(810)

    again = await store.commit(build.commit(key, at, operation_id="key"))
    at = again.position
    for _ in range(3):  # the first use of the id leaves the window here
        at = (await store.commit(build.commit(key, at))).position

    assert isinstance(again, Committed)
    assert (await store.commit(build.commit(key, at, operation_id="key"))).version == 2
    await store.close()


async def test_concurrent_commits_each_take_effect_once(store, build):
    """Fifty operations at once, each redone when it lost the race, make fifty versions."""
    key, _ = await build.session(store)

    async def append(number: int) -> int:
        while True:
            head = await store.load_head(key)
            state = head.state + b"," + str(number).encode()
            outcome = await store.commit(
                build.commit(key, head.position, operation_id=f"key {number}", state=state)
            )
            if isinstance(outcome, Committed):
                return outcome.position.version

    versions = await asyncio.gather(*(append(number) for number in range(50)))

    assert sorted(versions) == list(range(1, 51))
    applied = (await store.load_head(key)).state.split(b",")[1:]
    assert sorted(map(int, applied)) == list(range(50))


async def test_the_same_operation_sent_at_once_takes_effect_once(store, build):
    """Twenty copies of one commit at the same time make one version."""
    key, start = await build.session(store)
    commit = build.commit(key, start)

    outcomes = await asyncio.gather(*(store.commit(commit) for _ in range(20)))

    assert sum(isinstance(outcome, Committed) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, Replayed) for outcome in outcomes) == 19
    assert (await store.load_head(key)).version == 1
