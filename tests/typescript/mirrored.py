"""What the Python client computes, as cases for the other one: failures, texts, answers and streams."""

import json
import random
from dataclasses import replace

import httpx

from rlstm_client import _appends, errors
from rlstm_client._appends import FRAME_BYTES, Frames
from rlstm_client._calls import DEFAULT_RETRIES, Call, encode, read_append, still_open
from rlstm_client._http import EventSource
from rlstm_client.errors import error_classes
from rlstm_client.models import to_json

CALLS = {
    "keyed": Call(method="POST", path="/", read=str, headers={"Idempotency-Key": "k"}),
    "unkeyed": Call(method="POST", path="/", read=str),
    "reading": Call(method="GET", path="/", read=str),
    "deleting": Call(method="DELETE", path="/", read=str),
    "resumable": Call(method="POST", path="/", read=str, headers={"Idempotency-Key": "k"}, resumable=True),
}
TEXT = "a é 🙂\n\ufeff漢字 \r\nplain words and more of them "
STREAM = (
    "\ufeff: ping\n\nevent: token\nid: 7\ndata: é🙂\n\nevent:end\rdata: a\rdata:  b\r\r"
    "id: x\0y\r\ndata: c\r\n\r\n:\n\ndata: unfinished"
)


def tree():
    """Every class with its parent, by name."""
    return sorted([one.__name__, one.__mro__[1].__name__.replace("Exception", "Error")] for one in _classes())


def _classes(root=errors.RLSTMError):
    yield root
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _classes(child)


def words():
    """The server's word and the status of every class of its part."""
    found = error_classes()
    return sorted([one.__name__, one.type, one.status] for one in found)


def problems():
    """Answers of the server, of proxies and of nobody, and the errors that they are."""
    slugs = [one.type for one in error_classes() if one.type]
    documents = [{"type": f"urn:rlstm:problem:{slug}", "detail": "no", "applied": "yes"} for slug in slugs]
    documents += [
        {"type": "https://x.y/never_heard#of_this", "title": "a title", "applied": "perhaps", "version": 3},
        {"detail": "", "request_id": "theirs", "retry_after": 2.5},
    ]
    texts = [encode(document).decode() for document in documents]
    texts += ["", "<html>\n  502   Bad Gateway </html>", "[1]", "null", "🙂" * 400]
    for text in texts:
        for status in (400, 404, 409, 418, 429, 500, 502, 503, 504):
            for headers in (
                {},
                {"retry-after": "3"},
                {"retry-after": "Wed, 21 Oct 2026", "x-request-id": "h"},
            ):
                error = errors.from_answer(status, headers, text.encode(), "mine")
                yield {"status": status, "headers": headers, "text": text, "error": _told(error)}


def _told(error):
    return {
        "name": type(error).__name__,
        "detail": error.detail,
        "applied": error.applied,
        "requestId": error.request_id,
        "retryAfter": error.retry_after,
        "facts": error.facts,
    }


def waits():
    """Every class of error, on every kind of call: whether it is sent again, and when."""
    for call in CALLS.values():
        for one in _classes():
            for applied in ("no", "yes", "unknown"):
                for retry_after in (None, 0.0, 2.0, 31.0):
                    for attempt, chance in ((1, 0.0), (3, 0.5), (5, 0.9)):
                        error = one("failed", applied=applied, retry_after=retry_after)
                        wait = DEFAULT_RETRIES.wait(call, error, attempt, chance)
                        yield {
                            "call": {
                                "method": call.method,
                                "resumable": call.resumable,
                                "headers": {name.lower(): value for name, value in call.headers.items()},
                            },
                            "error": {
                                "name": one.__name__,
                                "applied": applied,
                                "retryAfter": retry_after,
                                "status": error.status,
                            },
                            "attempt": attempt,
                            "chance": chance,
                            "wait": wait,
                        }


def doubts():
    """Every class of error, after an attempt that left the outcome open and after one that did not."""
    for one in _classes():
        for applied in ("no", "yes", "unknown"):
            for before in (False, True):
                error = one("failed", applied=applied)
                yield {
                    "error": {"name": one.__name__, "applied": applied},
                    "before": before,
                    "open": still_open(error, before),
                    "applied": error.applied,
                }


def frames(chance):
    """Texts of a stream, and the frames that they are sent in."""
    for learn in (None, False):
        for final in (False, True):
            texts = [_text(chance, chance.choice((0, 1, 5, 3000))) for _ in range(8)]
            pieces = [piece for text in texts if text for piece in _appends.cut(text, FRAME_BYTES)]
            made = Frames("s", learn=learn)
            sent = [made.make(piece, final=final and piece is pieces[-1]) for piece in pieces]
            read = [json.loads(frame) for frame in sent]
            yield {"texts": texts, "learn": learn, "final": final, "frames": read}


def cuts(chance):
    """Texts of all kinds of characters, and where they are cut."""
    for size in (4, 5, 7, 64, 4096):
        for _ in range(20):
            text = _text(chance, chance.randrange(3 * size))
            yield {"text": text, "size": size, "pieces": _appends.cut(text, size)}


def _text(chance, length):
    return "".join(chance.choice(TEXT) for _ in range(length))


def keys(chance):
    """Texts and ids under a key of the caller's, and the keys of their pieces."""
    for options in ({}, {"final": True, "unit": "bits", "note": "é"}, {"learn": False, "scores": "none"}):
        ids = [chance.randrange(256) for _ in range(5_000)]
        for whole in ("short", _text(chance, 6_000), ids):
            plan = _appends.AppendPlan("s", whole, {"idempotency_key": "k-1", **options})
            made = [call.headers["Idempotency-Key"] for call in plan]
            yield {"whole": whole, "options": options, "keys": made}


def gathered(chance):
    """Streams of texts, and what is sent after each."""
    for size in (1, 8, 4096):
        for hold in (False, True):
            texts = [_text(chance, chance.choice((0, 1, 5, 3000))) for _ in range(12)]
            held, waiting, pieces = "", [], []
            for text in texts:
                held += text
                if len(held.encode()) >= size:
                    waiting, held = waiting + _appends.cut(held, _appends.PIECE_BYTES), ""
                sent = max(len(waiting) - hold, 0)
                pieces.append(waiting[:sent])
                waiting = waiting[sent:]
            pieces.append(waiting + (_appends.cut(held, _appends.PIECE_BYTES) if held else []))
            yield {"texts": texts, "size": size, "hold": hold, "pieces": pieces}


def sums(chance):
    """Answers for the pieces of a text, and the answer for all of it."""
    for scores in ("tokens", "totals", "none"):
        for static in (True, False):
            for count in (1, 2, 5):
                answers = [_answer(chance, scores, static) for _ in range(count)]
                combined = _appends.combine([read_append(scores, answer) for answer in answers])
                told = to_json(replace(combined, extra={}))
                whole = {name: told.get(name, answers[-1][name]) for name in answers[-1]}
                yield {"answers": answers, "whole": whole}


def _answer(chance, scores, static):
    tokens = chance.randrange(1, 9)
    column = [-chance.random() for _ in range(tokens)]
    answer = {
        "version": chance.randrange(99),
        "position": chance.randrange(999),
        "durability": "fsync",
        "replayed": chance.random() < 0.5,
        "unit": "nats",
        "learn": True,
        "updates": chance.randrange(1, 3),
        "guards": {"projected": 1} | ({"frozen": 2} if chance.random() < 0.5 else {}),
        "weights": [0.25, 0.75],
        "norm_ratio": chance.random(),
        "pending": 1,
        "expires_at": 9.0,
    }
    if scores == "tokens":
        answer |= {"ids": list(range(tokens)), "logprobs": column, "starts": list(range(tokens))}
        answer |= {"static_logprobs": column} if static else {}
    if scores != "none":
        answer["totals"] = {
            "logprob": sum(column),
            "static_logprob": 2 * sum(column) if static else None,
            "tokens": tokens,
            "bytes": tokens,
            "words": 1,
            "unknown": chance.randrange(1, 3),
            "perplexity": 1 + chance.random(),
            "bits_per_byte": chance.random(),
            "static_bits_per_byte": chance.random() if static else None,
            "gain": chance.random() if static else None,
        }
    return answer


def streams(chance):
    """Bytes of a stream, cut anywhere, and the events."""
    data = STREAM.encode()
    for _ in range(40):
        places = sorted(chance.choices(range(len(data) + 1), k=chance.randrange(12)))
        chunks = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
        told = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=iter(chunks))
        events = [
            {"event": event.event, "data": event.data, "id": event.id}
            for event in EventSource(told).iter_sse()
            if event.data  # httpx-sse gives one for a comment too, which has none and is none
        ]
        yield {"chunks": [list(chunk) for chunk in chunks], "events": events}


def cases(seed=0):
    """All of it, as JSON has it."""
    chance = random.Random(seed)
    return {
        "tree": tree(),
        "words": words(),
        "problems": list(problems()),
        "waits": list(waits()),
        "doubts": list(doubts()),
        "frames": list(frames(chance)),
        "cuts": list(cuts(chance)),
        "keys": list(keys(chance)),
        "gathered": list(gathered(chance)),
        "sums": list(sums(chance)),
        "streams": list(streams(chance)),
    }
