"""A log done again through the front door of a server that nobody disturbs."""

import json

from rlstm_server.engine.quotas import Caller
from rlstm_server.store.base import SessionKey

from .load import PROBE


class Replay:
    """A session of `client` that does what records say; the versions in `wanted` are named on the way."""

    def __init__(self, client, session, wanted):
        self._client = client
        self.session = session
        self._wanted = wanted
        self._version = 0

    @classmethod
    async def begin(cls, client, adaptation, wanted):
        """Begin with a new session."""
        made = await _post(client, "/sessions", {"adaptation": adaptation})
        return await cls(client, made["id"], wanted)._arrived(0)

    async def fork(self, wanted):
        """Begin where this one stands."""
        made = await _post(self._client, f"/sessions/{self.session}/fork", {})
        return await Replay(self._client, made["id"], wanted)._arrived(0)

    async def do(self, record):
        """Do what a record says; gives the scores of what was read."""
        content, path = json.loads(record.record), f"/sessions/{self.session}"
        logprobs = []
        match content["op"]:
            case "append" | "generate":
                for reading in content["readings"]:
                    body = {"tokens": reading["ids"], "learn": reading["learn"]}
                    logprobs += (await _post(self._client, f"{path}/append", body))["logprobs"]
            case "reset":
                await _post(self._client, f"{path}/reset", {"what": content["scope"]})
            case "restore":
                await _post(self._client, f"{path}/restore", {"snapshot": f"v{content['of']}"})
            case "update":
                pass  # what it says of learning is in each record after it
            case other:
                raise AssertionError(f"nobody knows how to do {other} again")
        await self._arrived(record.version)
        return logprobs

    async def _arrived(self, version):
        if version in self._wanted:
            await _post(self._client, f"/sessions/{self.session}/snapshots", {"name": f"v{version}"})
        return self


async def probe(client, session):
    """The log-probability of a fixed text after a session's present state."""
    answer = await _post(client, f"/sessions/{session}/score", {"candidates": [{"text": PROBE}]})
    return answer["candidates"][0]["logprob"]


async def state_bytes(client, session):
    """Everything that a session's scores depend on, whichever session it is, as bytes."""
    caller = Caller(tenant="default", request_id="", endpoint="")
    copy = await client.engine.sessions.read(SessionKey("default", session), caller)
    adapted = copy.state.adapted
    tensors = [
        (name, tensor.contiguous().cpu().numpy().tobytes()) for name, tensor in adapted.tensors().items()
    ]
    return json.dumps(adapted.header(), sort_keys=True), sorted(tensors)


async def _post(client, path, body):
    answer = await client.post(path, json=body)
    if answer.status_code >= 300:
        raise AssertionError(f"a record could not be done again: {answer.text}")
    return answer.json()
