"""Snapshots and exported files through a real server, and across its end."""

import signal

PROBE = {"candidates": [{"text": "the best of"}]}
TEXT = "It was the best of times. "
OCTETS = {"content-type": "application/octet-stream"}


def test_a_restored_session_and_its_file_outlive_a_server(start, tmp_path):
    """D1, D12: restored, killed, restarted: the same scores. Exported, deleted, imported: the same again."""
    with start(data_dir=tmp_path) as server, server.client() as client:
        session = client.post("/sessions", json={"text": TEXT * 4}).json()["id"]

        def probe(client, session):
            return client.post(f"/sessions/{session}/score", json=PROBE).json()["candidates"]

        client.post(f"/sessions/{session}/snapshots", json={"name": "here"})
        before = probe(client, session)
        client.post(f"/sessions/{session}/append", json={"text": "Another text altogether; " * 40})
        assert probe(client, session) != before
        client.post(f"/sessions/{session}/restore", json={"snapshot": "here"})
        data = client.get(f"/sessions/{session}/export").content
        server.end(signal.SIGKILL)
    assert (tmp_path / "export.key").stat().st_mode & 0o777 == 0o600
    with start(data_dir=tmp_path) as server, server.client() as client:
        assert probe(client, session) == before
        assert client.delete(f"/sessions/{session}").status_code == 204
        made = client.post("/sessions/import", content=data, headers=OCTETS)
        assert made.status_code == 201, made.text
        assert probe(client, made.json()["id"]) == before
