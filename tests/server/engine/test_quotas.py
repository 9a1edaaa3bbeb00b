import pytest

from rlstm_server.engine.quotas import TokenBucket
from rlstm_server.errors import RateLimited


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
