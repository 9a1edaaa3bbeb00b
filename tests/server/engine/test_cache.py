"""The cache: least recently used goes first, bytes add up."""

from hypothesis import given
from hypothesis import strategies as st

from rlstm_server.engine.state import SessionCache, SessionCopy, SessionFacts, SessionState
from rlstm_server.metrics import Metrics
from rlstm_server.schemas.sessions import SessionTotals
from rlstm_server.schemas.text import AdaptationChoice
from rlstm_server.store.base import Revision, SessionKey

CHOICE = AdaptationChoice(
    kind="full", num_fast_weights=1, experts=1, rate_scale=1.0, static=True, adapt="weights", rates=(0.1,)
)


class Sized:
    """Stands for an adapted state of so many bytes."""

    def __init__(self, nbytes):
        self.nbytes = nbytes


def copy_of(name, nbytes):
    key = SessionKey("acme", name)
    state = SessionState(
        served=None, evaluator=None, adapted=Sized(nbytes), choice=CHOICE, totals=SessionTotals()
    )
    facts = SessionFacts(name=None, created_at_ms=0, ttl_ms=1)
    return SessionCopy(key=key, revision=Revision.first(key), state=state, facts=facts)


def evicted(metrics):
    return metrics.registry.get_sample_value("rlstm_session_evictions_total", {"tier": "host"})


def test_the_least_recently_used_copy_goes_first():
    """A copy that was read is younger than one that was only put."""
    metrics = Metrics()
    cache = SessionCache(20, metrics)
    one, two, three = copy_of("one", 10), copy_of("two", 10), copy_of("three", 10)
    cache.put(one)
    cache.put(two)
    cache.get(one.key)
    cache.put(three)

    assert (cache.get(one.key), cache.get(two.key), cache.get(three.key)) == (one, None, three)
    assert evicted(metrics) == 1


def test_copies_are_counted_where_they_are():
    """What is kept, not what came or went; one larger than the cache pushes nothing out."""
    metrics = Metrics()
    cache = SessionCache(20, metrics)

    def counted():
        return metrics.registry.get_sample_value("rlstm_sessions", {"tier": "host"})

    for name in ("one", "two", "three"):
        cache.put(copy_of(name, 10))
    cache.put(copy_of("huge", 100))
    assert counted() == len(cache) == 2
    assert cache.get(copy_of("three", 10).key) is not None
    cache.drop(copy_of("three", 10).key)
    cache.drop(copy_of("nobody", 10).key)
    assert counted() == len(cache) == 1


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 12), st.booleans()), max_size=40))
def test_bytes_add_up_and_stay_within_the_limit(acts):
    """After any mix of puts and drops the books balance and the limit holds."""
    cache = SessionCache(25, Metrics())
    for name, nbytes, dropped in acts:
        copy = copy_of(name, nbytes)
        cache.put(copy)
        if dropped:
            cache.drop(copy.key)
        cache.check()

        assert cache.used_bytes <= 25
