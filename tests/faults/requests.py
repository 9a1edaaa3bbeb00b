"""How a client asks: with the same key until somebody says what became of it.

Most requests go where a proxy that hashes on the session would send them; some, and all repeats, go anywhere.
"""

import asyncio
import json
import time
from typing import NamedTuple
from zlib import crc32

import httpx

RETRIED = {408, 429, 503, 504}
RETRIED_CONFLICTS = {"conflict", "in_flight"}
PATIENCE_SECONDS = 60
GIVE_UP = 0.02
STRAY = 0.3


class Answer(NamedTuple):
    """What a client has in the end.

    status      0 where no answer came
    in_doubt    some try may have been applied
    """

    status: int
    document: dict
    in_doubt: bool = False

    @property
    def slug(self):
        """The short name of a problem."""
        return self.document.get("type", "").rpartition(":")[2]


class Requests:
    """Requests to `replicas`, whose answers are counted in `history`; `timeout` is for one try."""

    def __init__(self, replicas, history, timeout):
        self._replicas = replicas
        self._history = history
        self._http = httpx.AsyncClient(timeout=timeout, limits=httpx.Limits(keepalive_expiry=30))

    async def close(self):
        """Close all connections."""
        await self._http.aclose()

    async def until_known(
        self, dice, method, path, body=None, key=None, *, told=None, if_match=None, seen=None, allowed=()
    ):
        """Give the last answer: the outcome, or what there was when patience ended.

        A status that is neither a success, nor one to try again after, nor in `allowed` is wrong, but for the
        end of a session that somebody asked to delete.
        """
        headers = {} if key is None else {"idempotency-key": key}
        if if_match is not None:
            headers["if-match"] = f'"{if_match}"'
        deadline, in_doubt, stray = time.monotonic() + PATIENCE_SECONDS, False, STRAY
        while True:
            answer = await self._send(self._replica(dice, path, stray), method, path, body, headers, seen)
            stray = 1.0
            self._history.statuses[answer.slug or answer.status] += 1
            in_doubt = in_doubt or (answer.status >= 300 and answer.document.get("applied") != "no")
            in_doubt = in_doubt or answer.in_doubt
            answer = answer._replace(in_doubt=in_doubt)
            if 0 < answer.status < 300 or answer.status in allowed:
                return answer
            if answer.status in (404, 410) and told is not None and told.deleting:
                return answer
            if answer.status not in {0, *RETRIED} and answer.slug not in RETRIED_CONFLICTS:
                detail = answer.document.get("detail")
                self._history.wrong.append(f"{method} {path} was answered {answer.status}: {detail}")
                return answer
            if dice.random() < GIVE_UP or time.monotonic() > deadline:
                return answer
            await asyncio.sleep(dice.uniform(0.01, 0.1))

    def _replica(self, dice, path, stray):
        """A replica that serves, as far as anybody knows; None when there is none."""
        serving = self._replicas.serving
        if not serving:
            return None
        session = path.split("/")[2:3]
        if not session or dice.random() < stray:
            return dice.choice(serving)
        return serving[crc32(session[0].encode()) % len(serving)]

    async def _send(self, replica, method, path, body, headers, seen):
        if replica is None:
            return Answer(0, {})
        url, began = replica.url + path, time.monotonic()
        try:
            if body is not None and body.get("stream"):
                return await self._read_stream(url, body, headers, seen)
            answer = await self._http.request(method, url, json=body, headers=headers)
            return Answer(answer.status_code, json.loads(answer.content) if answer.content else {})
        except (httpx.ConnectError, httpx.ConnectTimeout):
            return Answer(0, {})
        except httpx.TransportError:
            return Answer(0, {}, in_doubt=True)
        finally:
            self._history.waits.append(time.monotonic() - began)

    async def _read_stream(self, url, body, headers, seen):
        """Read events to their end. What a reader was shown is in every later answer to the same key."""
        ids, name = [], None
        async with self._http.stream("POST", url, json=body, headers=headers) as answer:
            if answer.status_code != 200:
                return Answer(answer.status_code, json.loads(await answer.aread()))
            async for line in answer.aiter_lines():
                field, _, value = line.partition(":")
                if field == "event":
                    name = value.strip()
                if field != "data":
                    continue
                data = json.loads(value)
                if name == "token":
                    ids.append(data["id"])
                    self._compare(seen, ids, headers)
                elif name == "end":
                    return Answer(200, data | {"ids": ids})
                else:
                    return Answer(data["status"], data)
        return Answer(0, {}, in_doubt=True)

    def _compare(self, seen, ids, headers):
        if len(ids) > len(seen):
            seen.append(ids[-1])
        elif seen[len(ids) - 1] != ids[-1]:
            self._history.wrong.append(f"a repeat of {headers['idempotency-key']} streamed another text")
