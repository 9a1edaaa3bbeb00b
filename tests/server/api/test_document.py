"""The OpenAPI document says what clients have to know."""

import pytest

from rlstm_server.api.auth import OPEN_PATHS


async def operations(client):
    document = (await client.get("/openapi.json")).json()
    return document, [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


async def test_a_body_of_json_may_be_left_out(client):
    """It counts as an empty object; that of a file may not."""
    _, found = await operations(client)
    for _, path, operation in found:
        if "requestBody" in operation:
            assert operation["requestBody"]["required"] is path.endswith("/import")


async def test_parameters_say_what_they_look_like(client):
    """Ids and headers have a pattern."""
    document, _ = await operations(client)
    parameters = document["paths"]["/sessions/{session_id}/append"]["post"]["parameters"]
    forms = {one["name"]: "'pattern'" in str(one["schema"]) for one in parameters}
    assert set(forms) == {"session_id", "idempotency-key", "if-match"}
    assert all(forms.values())


@pytest.mark.parametrize("keys", [{}, {"api_keys": "the-right-key"}])
async def test_whether_a_key_is_needed_is_said(serve, keys):
    """Everywhere but on the open routes; nowhere on a server without keys."""
    headers = {"authorization": "Bearer the-right-key"}
    async with serve(headers=headers, **keys) as client:
        document, found = await operations(client)
    closed = {path for _, path, operation in found if {} not in operation.get("security", [{}])}
    assert closed == ({path for _, path, _ in found} - OPEN_PATHS if keys else set())
    assert ("securitySchemes" in document["components"]) == bool(keys)


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/sessions/abc", "DELETE, GET, PATCH"),
        ("/sessions/import", "POST"),
        ("/sessions", "GET, POST"),
        ("/sessions/abc/stream", "GET"),
        ("/health/live", "GET, HEAD"),
    ],
)
async def test_a_wrong_method_is_told_all_right_ones(client, path, methods):
    """RFC 9110: Allow lists the methods of the resource, not of one route."""
    answer = await client.request("OPTIONS", path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == methods


async def test_events_are_described(client):
    """Each kind of event of a stream names the schema of its data, which is there."""
    document, found = await operations(client)
    streams = [
        content["text/event-stream"]["itemSchema"]["oneOf"]
        for _, path, operation in found
        if "text/event-stream" in (content := operation["responses"].get("200", {}).get("content", {}))
        and not path.startswith("/v1/")
    ]
    assert len(streams) == 2
    for events in streams:
        assert [one["properties"]["event"]["const"] for one in events] == ["token", "end", "error"]
        for one in events:
            schema = one["properties"]["data"]["contentSchema"]["$ref"].rsplit("/", 1)[-1]
            assert document["components"]["schemas"][schema]["description"]
