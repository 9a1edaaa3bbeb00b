import pytest

from rlstm_server.engine.billing import Bill, billed, paid
from rlstm_server.engine.quotas import Allowance, TokenBucket
from rlstm_server.errors import Conflict, OutcomeUnknown, RateLimited, SlowConsumer
from rlstm_server.schemas import EndEvent, GenerationSettings, TokenEvent


def test_a_bucket_refuses_what_exceeds_its_rate():
    """One second's worth at once, then as it refills; the refusal says when."""
    now = 0.0
    bucket = TokenBucket("requests", 2.0, clock=lambda: now)
    bucket.take()
    bucket.take()
    with pytest.raises(RateLimited) as refused:
        bucket.take()
    assert refused.value.retry_after_seconds == pytest.approx(0.5)
    now = 0.5
    bucket.take()
    now = 100.0
    for _ in range(2):
        bucket.take()
    with pytest.raises(RateLimited):
        bucket.take()


def test_a_charge_may_be_larger_than_what_is_left():
    """It is paid off before anything else is taken, and the refusal names both numbers and the time."""
    now = 0.0
    bucket = TokenBucket("tokens", 100.0, clock=lambda: now)
    bucket.take(1_100)
    with pytest.raises(RateLimited, match="tokens: 1,100 used, at most 100 a second allowed") as refused:
        bucket.take(1)
    assert refused.value.retry_after_seconds == pytest.approx(10.01)
    assert (refused.value.facts["given"], refused.value.facts["limit"]) == (1_100, 100.0)
    now = 10.02
    bucket.take(1)


def test_what_is_given_back_does_not_pile_up():
    """One second's worth may come at once, whatever was returned."""
    bucket = TokenBucket("tokens", 2.0, clock=lambda: 0.0)
    bucket.use(-100)
    bucket.take(1)
    bucket.take(1)
    with pytest.raises(RateLimited):
        bucket.check()


@pytest.fixture
def buckets():
    """Three buckets of ten units that never refill."""
    return {name: TokenBucket(name, 10.0, clock=lambda: 0.0) for name in ("tokens", "learned", "generated")}


def left(bucket):
    return bucket._level


def test_work_that_is_done_again_is_charged_once(buckets):
    """As often as other servers make it necessary."""
    bill = Bill(Allowance(**buckets))
    for _ in range(3):
        bill.charge(tokens=6, learned=4)
    assert [left(bucket) for bucket in buckets.values()] == [4, 6, 10]


def test_a_refusal_charges_nothing(buckets):
    """Neither the quota that is used up nor the others."""
    buckets["learned"].take(10)
    with pytest.raises(RateLimited, match="learned"):
        Bill(Allowance(**buckets)).charge(tokens=6, learned=4)
    assert left(buckets["tokens"]) == 10


@pytest.mark.parametrize(("error", "charged"), [(Conflict("x"), 0), (OutcomeUnknown("x"), 6)])
def test_what_was_not_applied_is_given_back(buckets, error, charged):
    """But not what may have been."""

    def work():
        with billed(Allowance(**buckets)) as bill:
            bill.charge(tokens=6)
            raise error

    with pytest.raises(type(error)):
        work()
    assert left(buckets["tokens"]) == 10 - charged


def event(index):
    return TokenEvent(choice=0, index=index, id=1, text="a", logprob=-1.0)


async def test_a_text_is_charged_in_advance_and_settled(buckets):
    """While it is written all that may come is charged, and in the end what came, also to an early leaver."""

    async def two():
        yield event(0)
        yield event(1)

    settings, bill = GenerationSettings(max_tokens=4, choices=2), Bill(Allowance(**buckets))
    stream = paid(two(), settings, bill, learns=True)
    await anext(stream)
    assert (left(buckets["generated"]), left(buckets["learned"])) == (2, 2)
    await stream.aclose()
    assert (left(buckets["generated"]), left(buckets["learned"])) == (9, 9)


@pytest.mark.parametrize(("shown", "left_over"), [(0, 10), (2, 5)])
async def test_who_was_shown_some_of_a_text_has_had_its_prompt(buckets, shown, left_over):
    """A reader who falls behind pays for what he got; one who got nothing pays nothing."""

    async def broken_off():
        for index in range(shown):
            yield event(index)
        raise SlowConsumer("x")

    async def read():
        with billed(Allowance(**buckets)) as bill:
            bill.charge(tokens=5)
            async for _ in paid(broken_off(), GenerationSettings(max_tokens=4), bill):
                pass

    with pytest.raises(SlowConsumer):
        await read()
    assert (left(buckets["tokens"]), left(buckets["generated"])) == (left_over, 10 - shown)


async def test_a_text_that_was_written_before_costs_nothing(buckets):
    """Its repeat is read from the store."""

    async def replayed():
        yield event(0)
        yield EndEvent(
            choice=0, finish_reason="length", prompt_tokens=0, completion_tokens=1, seed=1, replayed=True
        )

    bill = Bill(Allowance(**buckets))
    assert len([_ async for _ in paid(replayed(), GenerationSettings(max_tokens=4), bill)]) == 2
    assert left(buckets["generated"]) == 10
