"""Whatever is changed in what lies in the store is noticed, and never served as a session's state."""

import random

import pytest

from rlstm_server.errors import ServerError, StateCorrupt
from rlstm_server.store.redis_functions import session_key
from rlstm_server.store.redis_store import RedisStore


@pytest.fixture
async def store(embedded_url):
    made = RedisStore(embedded_url, timeout_s=20)
    yield made
    await made.close()


async def test_a_head_that_cannot_be_read_is_corrupt(store, admin, build):
    """A field that is lost, or holds what it cannot, is named as damage; the session can still be ended."""
    draw = random.Random(1)
    key, at = await build.session(store)
    await store.commit(build.commit(key, at))
    head = session_key(key, "head")
    whole = admin.dump(head)
    needed = [name for name in admin.hkeys(head) if name not in (b"info", b"answer", b"state")]
    for name in needed:
        for value in (None, b"x", draw.randbytes(5)):
            admin.restore(head, 0, whole, replace=True)
            if value is None:
                admin.hdel(head, name)
            elif name in (b"name", b"form") or (name == b"chain" and len(value) != 32):
                admin.hset(head, b"form", value)
            else:
                admin.hset(head, name, value)
            with pytest.raises((StateCorrupt, ServerError)):
                await store.load_head(key)
    await store.delete(key)
    with pytest.raises(ServerError, match="deleted"):
        await store.load_head(key)
