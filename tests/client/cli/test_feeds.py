"""Logs of other forms: entries of a journal, and what a collector exports, answered once it was judged."""

import asyncio
import gzip
import json
import os
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest

from rlstm_client.cli.feeds import Collector, Journal
from rlstm_client.cli.sources import Line

ENTRIES: list[Mapping[str, Any]] = [
    {
        "__CURSOR": "c1",
        "_HOSTNAME": "web",
        "_SYSTEMD_UNIT": "a.service",
        "SYSLOG_IDENTIFIER": "a",
        "MESSAGE": "one",
    },
    {"__CURSOR": "c2", "_COMM": "b", "MESSAGE": [*b"t\xffo"]},
    {"__CURSOR": "c3", "MESSAGE": ["three\nlines", "and more"], "PRIORITY": "3", "BIG": "x" * 9_000},
    {"__CURSOR": "c4", "MESSAGE": None},
    {"__CURSOR": "c5", "_COMM": "b", "MESSAGE": "five"},
]
TEXTS = ["a: one", "b: t�o", "-: three lines and more", "b: five"]
EXPORT = "".join(json.dumps(entry) + "\n" for entry in ENTRIES)


async def read(journal: Journal, place: Mapping[str, Any], count: int) -> list[Line]:
    """So many lines of a journal."""
    async with aclosing(journal.lines(place)) as lines:
        return [await anext(lines) for _ in range(count)]


async def test_the_entries_of_an_export(tmp_path: Path) -> None:
    """With who wrote them, in one line each, from a place on; what is no entry, or says nothing, is none."""
    path = tmp_path / "export.json"
    path.write_text(EXPORT + "-- no entry --\n" + "[1]\n")
    journal = Journal(str(path), follow=False)
    first = await read(journal, {}, 2)
    rest = await read(Journal(str(path), follow=False), journal.place, 2)

    assert [line.text for line in first + rest] == TEXTS
    assert first[0].labels == {"host": "web", "unit": "a.service"}
    assert journal.name == f"journal:{path}"


async def test_the_journal_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the program, from the cursor that was kept; it ends with the watch."""
    program = tmp_path / "journalctl"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\ncat {tmp_path}/export\nexec sleep 60\n')
    program.chmod(0o755)
    (tmp_path / "export").write_text(EXPORT)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    journal = Journal("journalctl", follow=True)
    lines = await read(journal, {}, 4)
    await read(Journal("journalctl", follow=True), journal.place, 1)

    assert [line.text for line in lines] == TEXTS
    asked = (tmp_path / "asked").read_text().splitlines()
    assert "--lines=1000" in asked[0]
    assert "--no-tail --after-cursor=c5" in asked[1]


def exported(*texts: str) -> bytes:
    """A request of a collector with these records."""
    logs = pytest.importorskip("opentelemetry.proto.collector.logs.v1.logs_service_pb2")
    request = logs.ExportLogsServiceRequest()
    resource = request.resource_logs.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "shop"
    scope = resource.scope_logs.add()
    for text in texts:
        scope.log_records.add().body.string_value = text
    body: bytes = request.SerializeToString()
    return body


AS_JSON = {
    "resourceLogs": [
        {
            "scopeLogs": [
                {
                    "logRecords": [
                        {"traceId": "5b8efff798038103d269b633813fc60c", "body": {"stringValue": "one"}},
                        {"body": {"kvlistValue": {"values": [{"key": "a", "value": {"intValue": "3"}}]}}},
                        {"body": {"arrayValue": {"values": [{"doubleValue": 0.5}, {"boolValue": True}]}}},
                        {"body": {"bytesValue": "aGk="}},
                        {},
                    ]
                }
            ]
        }
    ]
}
PROTOBUF, JSON = (
    {"content-type": "application/x-protobuf"},
    {"content-type": "application/json; charset=utf-8"},
)


@pytest.fixture
def collector() -> Collector:
    """One at a free port."""
    pytest.importorskip("opentelemetry.proto")
    return Collector(("127.0.0.1", 0))


async def test_what_a_collector_sends(collector: Collector) -> None:
    """As protobuf, packed or not, and as JSON; a request is answered once its lines were judged."""
    url = f"http://127.0.0.1:{collector.name.removeprefix('otlp:')}/v1/logs"
    taken: list[str] = []
    begun, judged = asyncio.Event(), asyncio.Event()

    async def watch() -> None:
        async for line in collector.lines({}):
            taken.append(line.text)
            begun.set()
            await judged.wait()

    watching = asyncio.ensure_future(watch())
    async with httpx.AsyncClient(trust_env=False) as client:
        sending = asyncio.ensure_future(
            client.post(url, content=exported("one", "two\nlines", ""), headers=PROTOBUF)
        )
        await begun.wait()
        assert not sending.done()
        judged.set()
        assert (await sending).status_code == 200
        packed = {**PROTOBUF, "content-encoding": "gzip"}
        await client.post(url, content=gzip.compress(exported("x")), headers=packed)
        assert (await client.post(url, content=json.dumps(AS_JSON), headers=JSON)).json() == {}
        assert taken == [
            *("shop: one", "shop: two lines", "shop: x"),
            *("one", '{"a": 3}', "[0.5, true]", "hi"),
        ]
        for place, body, headers, status in (
            ("/v1/traces", b"", PROTOBUF, 404),
            ("/v1/logs", b"junk", PROTOBUF, 400),
            ("/v1/logs", b"junk", packed, 400),
            ("/v1/logs", b"{", JSON, 400),
            ("/v1/logs", b"a", {"content-type": "text/plain"}, 415),
        ):
            answer = await client.post(url.replace("/v1/logs", place), content=body, headers=headers)
            assert answer.status_code == status
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
