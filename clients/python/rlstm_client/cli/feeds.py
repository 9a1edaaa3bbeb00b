"""Logs that are not plain lines: systemd's journal, and OTLP/HTTP logs from an OpenTelemetry collector."""

import asyncio
import gzip
import json
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rlstm_client.cli.exits import CommandError, Exit
from rlstm_client.cli.sources import Cutter, File, Line, StandardInput

if TYPE_CHECKING:
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

PROGRAM: Final = "journalctl"
ENTRY_BYTES: Final = 1 << 20
BODY_BYTES: Final = 64 << 20
FIRST_LINES: Final = 1_000
"""Of a journal, that a new watch begins with."""

_LABELS: Final = {
    "_SYSTEMD_UNIT": "unit",
    "_HOSTNAME": "host",
    "service.name": "service",
    "host.name": "host",
}
_PROTOBUF, _JSON = "application/x-protobuf", "application/json"


def missing(name: str) -> CommandError:
    """Return the error for an option whose library is not installed."""
    return CommandError(f"{name}: install it with: pip install 'mogrifier-rlstm[watch]'", Exit.MISSING)


@contextmanager
def binding(option: str, address: tuple[str, int]) -> Iterator[None]:
    """Say which address cannot be bound."""
    try:
        yield
    except OSError as error:
        host, port = address
        raise CommandError(f"{option}: {host}:{port}: {error.strerror}") from error


# ---- the journal ------------------------------------------------------------------------------------------


class Journal:
    """What `journalctl -o json` writes: into a file, into standard input (``-``), or when it is run by us."""

    def __init__(self, place: str, *, follow: bool) -> None:
        """Raises OSError at once for a file that cannot be read."""
        self.name = f"journal:{place}"
        self._cursor: str | None = None
        self._source: File | StandardInput | None = None
        if place == "-":
            self._source = StandardInput(most=ENTRY_BYTES)
        elif place != PROGRAM:
            self._source = File(Path(place), follow=follow, most=ENTRY_BYTES)

    @property
    def place(self) -> Mapping[str, Any]:
        """Where it was read to: in the file, or in the journal itself."""
        return {"cursor": self._cursor} if self._source is None else self._source.place

    async def lines(self, place: Mapping[str, Any]) -> AsyncGenerator[Line, None]:
        """Yield a line for each entry that has a message."""
        raw = self._run(place.get("cursor")) if self._source is None else self._source.lines(place)
        async with aclosing(raw) as lines:
            async for line in lines:
                entry = _entry(line.text)
                self._cursor = entry.get("__CURSOR", self._cursor)
                if message := _message(entry.get("MESSAGE")):
                    yield Line(f"{_sender(entry)}: {message}", line.size, _labels(entry))

    async def _run(self, cursor: str | None) -> AsyncGenerator[Line, None]:
        begin = [f"--lines={FIRST_LINES}"] if cursor is None else ["--no-tail", f"--after-cursor={cursor}"]
        program = await asyncio.create_subprocess_exec(
            PROGRAM, "--output=json", "--all", "--follow", *begin, stdout=asyncio.subprocess.PIPE
        )
        assert program.stdout is not None
        try:
            cut, more = Cutter(PROGRAM, most=ENTRY_BYTES), True
            while more:
                chunk = await program.stdout.read(1 << 16)
                more = bool(chunk)
                for line in cut.feed(chunk, last=not more):
                    yield line
            if code := await program.wait():
                raise CommandError(f"{PROGRAM} ended with exit code {code}", Exit.REFUSED)
        finally:
            with suppress(ProcessLookupError):
                program.terminate()
            await program.wait()


def _entry(text: str) -> Mapping[str, Any]:
    """The fields of an entry; of what is none, none."""
    try:
        entry = json.loads(text)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}


def _message(message: Any) -> str:
    """The text of an entry in one line; what is no UTF-8 comes as numbers, and several values as a list."""
    if isinstance(message, list) and all(isinstance(byte, int) for byte in message):
        message = bytes(message).decode(errors="replace")
    values = message if isinstance(message, list) else [message]
    return " ".join(part for value in values if isinstance(value, str) for part in value.splitlines())


def _sender(entry: Mapping[str, Any]) -> str:
    known = (entry.get(name) for name in ("SYSLOG_IDENTIFIER", "_COMM", "_SYSTEMD_UNIT"))
    return next((name for name in known if isinstance(name, str)), "-")


def _labels(found: Mapping[str, Any]) -> Mapping[str, str]:
    known = ((label, found.get(name)) for name, label in _LABELS.items())
    return {label: value for label, value in known if value and isinstance(value, str)}


# ---- a collector ------------------------------------------------------------------------------------------


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    take: Callable[[bytes, str], None]

    def handle_error(self, *_: object) -> None:
        """Say nothing of senders that leave: what was not answered comes again."""


class Collector:
    """Logs that a collector exports by OTLP/HTTP: a request is answered once its lines were judged.

    What is not answered comes again, as OTLP asks of an exporter; nothing else can be read again.
    """

    place: Mapping[str, Any] = {}

    def __init__(self, address: tuple[str, int]) -> None:
        """Raises CommandError for an address that cannot be bound, or without the extra."""
        try:
            from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
        except ImportError as error:
            raise missing("--otlp") from error
        self._kind = logs_service_pb2.ExportLogsServiceRequest
        with binding("--otlp", address):
            self._server = _Server(address, _Handler)
        self._server.take = self._take
        self.name = f"otlp:{self._server.server_port}"

    async def lines(self, place: Mapping[str, Any]) -> AsyncGenerator[Line, None]:
        """Yield lines as they come, for ever."""
        self._loop = asyncio.get_running_loop()
        self._batches = asyncio.Queue[tuple[Sequence[Line], threading.Event]](4)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        try:
            while True:
                batch, judged = await self._batches.get()
                for line in batch:
                    yield line
                judged.set()
        finally:
            self._server.shutdown()
            self._server.server_close()

    def _take(self, body: bytes, kind: str) -> None:
        """Have the lines of a request judged. Raises ValueError for what cannot be read; in a thread."""
        from google.protobuf import json_format, message

        request = self._kind()
        try:
            if kind == _JSON:
                json_format.Parse(body, request, ignore_unknown_fields=True)
            else:
                request.ParseFromString(body)
        except (message.Error, json_format.Error) as error:
            raise ValueError(str(error)) from error
        judged = threading.Event()
        put = self._batches.put((_lines(request), judged))
        asyncio.run_coroutine_threadsafe(put, self._loop).result()
        judged.wait()


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        kind, size = self.headers.get_content_type(), self.headers.get("content-length", "")
        if self.path != "/v1/logs":
            self.send_error(404, "the path is /v1/logs")
        elif kind not in (_PROTOBUF, _JSON):
            self.send_error(415, f"the body is {_PROTOBUF} or {_JSON}")
        elif not size.isdecimal() or int(size) > BODY_BYTES:
            self.send_error(413)
        else:
            self._answer(self.rfile.read(int(size)), kind)

    def _answer(self, body: bytes, kind: str) -> None:
        try:
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.GzipFile(fileobj=BytesIO(body)).read(BODY_BYTES)
            self.server.take(body, kind)
        except (ValueError, OSError, EOFError) as error:
            self.send_error(400, "these are no logs", str(error))
            return
        answer = b"{}" if kind == _JSON else b""
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""


def _lines(request: "ExportLogsServiceRequest") -> list[Line]:
    lines = []
    for resource in request.resource_logs:
        labels = _labels(_values(resource.resource.attributes))
        sender = f"{labels['service']}: " if "service" in labels else ""
        for scope in resource.scope_logs:
            for record in scope.log_records:
                value = _value(record.body)
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                if text := " ".join(text.splitlines()):
                    lines.append(Line(sender + text, record.ByteSize(), labels))
    return lines


def _values(pairs: "Sequence[KeyValue]") -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: "AnyValue") -> Any:
    match kind := value.WhichOneof("value"):
        case None:
            return ""
        case "kvlist_value":
            return _values(value.kvlist_value.values)
        case "array_value":
            return [_value(one) for one in value.array_value.values]
        case "bytes_value":
            return value.bytes_value.decode(errors="replace")
    return getattr(value, kind)
