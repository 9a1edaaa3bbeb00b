"""The blocking client. `async_client` has the same shape, word for word."""

import random
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Literal, Self, Unpack, overload

import httpx

from rlstm_client import _http, _wire
from rlstm_client._retries import DEFAULT_RETRIES, Retries
from rlstm_client.connection import Connection, EventStream
from rlstm_client.models import Generation, Health, ScoreResult, ServerInfo, TokenizerInfo
from rlstm_client.options import GenerateOptions, ScoreOptions
from rlstm_client.sessions import Sessions


class Client:
    """Talks to one server.

        with Client("http://127.0.0.1:8000") as client:
            print(client.score("a text").items[0].totals.bits_per_byte)

    url        where the server is; it may end in a path
    api_key    sent as a bearer token
    timeout    seconds, or an `httpx.Timeout`; the default waits long, since learning takes its time
    retries    how often a call is repeated; what could be done twice never is
    transport  an httpx transport, for tests and for special networks
    sleep, chance    the clock and the random source of the waits between attempts

    Every method raises an `RLSTMError`; the module `errors` draws the tree.
    """

    def __init__(
        self,
        url: str = _http.DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout: float | httpx.Timeout = _http.DEFAULT_TIMEOUT,
        retries: Retries = DEFAULT_RETRIES,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._connection = Connection(
            url,
            api_key=api_key,
            timeout=timeout,
            retries=retries,
            transport=transport,
            sleep=sleep,
            chance=chance,
        )
        self.sessions = Sessions(self._connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    def score(self, text: str | None = None, **options: Unpack[ScoreOptions]) -> ScoreResult:
        """Return the log-probability of every token of a text, of ids, or of up to 256 items."""
        return self._connection.send(_wire.score(text, **options))

    @overload
    def generate(
        self, prompt: str | None = None, *, stream: Literal[False] = False, **options: Unpack[GenerateOptions]
    ) -> Generation: ...
    @overload
    def generate(
        self, prompt: str | None = None, *, stream: Literal[True], **options: Unpack[GenerateOptions]
    ) -> EventStream: ...
    def generate(
        self, prompt: str | None = None, *, stream: bool = False, **options: Unpack[GenerateOptions]
    ) -> Generation | EventStream:
        """Continue a prompt; with ``stream=True`` return its events as they come."""
        call = _wire.generate(prompt, stream=stream, **options)
        if stream:
            return self._connection.stream(call)
        return self._connection.send(call)

    def tokenize(
        self, prompt: str, *, model: str | None = None, add_special_tokens: bool | None = None
    ) -> Sequence[int]:
        """Return a text's ids."""
        call = _wire.tokenize(prompt, model=model, add_special_tokens=add_special_tokens)
        return self._connection.send(call)

    def detokenize(self, tokens: Sequence[int], *, model: str | None = None) -> str:
        """Return the text of ids; those that are no whole text are an `UnprocessableError`."""
        return self._connection.send(_wire.detokenize(tokens, model=model))

    def tokenizer_info(self, *, model: str | None = None) -> TokenizerInfo:
        """Return what is to be known of the vocabulary."""
        return self._connection.send(_wire.tokenizer_info(model=model))

    def info(self) -> ServerInfo:
        """Return the model card, limits and defaults."""
        return self._connection.send(_wire.info())

    def live(self) -> Health:
        """Return if the process answers."""
        return self._connection.send(_wire.live())

    def ready(self) -> Health:
        """Return if the server takes work; one that does not is an `UnavailableError`."""
        return self._connection.send(_wire.ready())

    def metrics(self) -> str:
        """Return the metrics in Prometheus' text format."""
        return self._connection.send(_wire.metrics())
