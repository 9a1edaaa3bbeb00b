"""What a server can be told: environment variables `RLSTM_*`, named like the options of `rlstm serve`.

Where `RLSTM_SECRETS_DIR` names a folder, its files are settings too, each named like its variable
(`rlstm_redis_url`): so containers are given secrets. A variable that is set wins over a file.
A setting that cannot be used is refused here, by name, before anything is started.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

from platformdirs import user_data_path
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    IPvAnyNetwork,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from rlstm_server.errors import StartupError
from rlstm_server.faults import reason

PREFIX = "RLSTM_"
SECRETS_DIR = f"{PREFIX}SECRETS_DIR"

ELSEWHERE: Final = frozenset({"API_KEY", "CORPORA", "INSTRUCTIONS", "NATIVE", "SECRETS_DIR", "TARGET", "URL"})
"""Variables of ours that are no settings: of clients and training, of the native core and its build."""

Device = Literal["auto", "cpu", "cuda"]
Durability = Literal["fsync", "replica", "memory"]
LogLevel = Literal["debug", "info", "warning", "error"]

MAX_STATE_BYTES: Final = 16 * 2**20
"""A state travels in one piece with every commit: a larger one would hold up everybody else."""

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

MEMORY_SHARE = 3 / 4
"""How much of the memory for requests one tenant may fill: the rest is for others who come."""

NUMBER_BYTES = 128
"""What a number of an answer takes at most, on average, while the answer is made and sent."""


class ModelSetting(NamedTuple):
    """A model that is to be served: where it is, and by which name; None is the name that it has there."""

    name: str | None
    place: str

    @classmethod
    def of(cls, said: str) -> ModelSetting:
        """Read `PLACE` or `NAME=PLACE`. A folder that is there is a place, whatever its name looks like."""
        name, sign, place = said.partition("=")
        named = sign and place and MODEL_NAME.fullmatch(name) and not Path(said).is_dir()
        return cls(name, place) if named else cls(None, said)


class Limits(BaseModel):
    """Everything that multiplies is bounded; environment `RLSTM_LIMITS__<NAME>`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    body_bytes: int = Field(
        default=4 * 2**20, ge=1024, le=2**30, description="One request body, counted as received."
    )
    import_bytes: int = Field(
        default=32 * 2**20, ge=1024, le=2**30, description="One exported session, counted as received."
    )
    state_bytes: int = Field(
        default=2 * 2**20,
        ge=2**17,
        le=MAX_STATE_BYTES,
        description="A session's state, which every commit writes whole: each commit of 16 MiB holds up all"
        " others by some 50 ms, and takes so much of the store's log.",
    )
    requests_bytes: int = Field(
        default=2**30,
        ge=1024,
        le=2**40,
        description="Memory for all requests under way: bodies, and answers that grow with them. One tenant's"
        " may fill three quarters.",
    )
    receive_seconds: float = Field(
        default=14.0,
        gt=0,
        le=600,
        description="Time that a body may take to arrive.",
    )
    send_seconds: float = Field(
        default=10.0,
        gt=0,
        le=600,
        description="Silence of the reader of a stream, which has more to read, before it is cut.",
    )
    idle_seconds: int = Field(
        default=30, ge=1, le=3600, description="How long a connection is kept for another request."
    )
    connections: int = Field(default=4_096, ge=1, le=2**20, description="Open connections in total.")
    failed_logins: int = Field(
        default=20,
        ge=1,
        le=2**20,
        description="Wrong keys that one address may show at once; one more each second.",
    )
    score_items: int = Field(default=256, ge=1, le=4096, description="Texts in one /score.")
    score_tokens: int = Field(default=2**21, ge=1, le=2**28, description="Tokens of all items of one /score.")
    score_numbers: int = Field(default=2**22, ge=1, le=2**28, description="Tokens x (1 + top) of one /score.")
    append_tokens: int = Field(
        default=65_536,
        ge=1,
        le=2**17,
        description="Tokens of one append, of a prompt, and of all candidates of one session score.",
    )
    note_bytes: int = Field(default=65_536, ge=1, le=2**17, description="UTF-8 of a session's note.")
    candidates: int = Field(default=256, ge=1, le=4096, description="Candidates of one session score.")
    generate_tokens: int = Field(
        default=65_536, ge=1, le=2**24, description="n x max_tokens of one /generate."
    )
    queued_jobs: int = Field(
        default=2_048,
        ge=1,
        le=2**20,
        description="Requests that wait for the device or are on it; one tenant may fill three quarters.",
    )
    queued_operations_per_session: int = Field(
        default=64, ge=1, le=2**16, description="Changes of one session that wait for each other."
    )
    reader_events: int = Field(
        default=256, ge=1, le=2**20, description="Events that wait for the reader of a stream."
    )
    reader_bytes: int = Field(default=2**20, ge=1, le=2**30, description="What they may take.")
    ping_seconds: float = Field(
        default=10.0, gt=0, le=600, description="Silence of an event stream before a comment."
    )
    drain_seconds: float = Field(default=6.0, gt=0, le=600, description="What open work gets after SIGTERM.")

    @model_validator(mode="after")
    def _leave_room_for_the_largest(self) -> Limits:
        largest = {
            "BODY_BYTES": self.body_bytes,
            "IMPORT_BYTES": self.import_bytes,
            f"SCORE_NUMBERS, of {NUMBER_BYTES} bytes each": self.score_numbers * NUMBER_BYTES,
        }
        for name, size in largest.items():
            if size > MEMORY_SHARE * self.requests_bytes:
                raise ValueError(
                    f"REQUESTS_BYTES must be so large that {name} ({size:,}) fit into three quarters"
                )
        return self


class Settings(BaseSettings):
    """All settings of one server. Without keys it serves this machine only, and says so."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
    )

    model: Annotated[tuple[str, ...], NoDecode] = Field(
        default=("bytes-small", "subwords-base"),
        min_length=1,
        description="Shipped models' names or checkpoint folders, comma separated; `NAME=FOLDER` serves one"
        " by another name. The first is the default.",
    )
    host: str = Field(
        default="127.0.0.1", min_length=1, description="Address to bind; only loopback without keys."
    )
    port: int = Field(default=8000, ge=0, le=65_535, description="Port to bind; 0 takes a free one.")
    data_dir: Path = Field(
        default_factory=lambda: user_data_path("rlstm"), description="Home of the embedded store."
    )
    redis_url: SecretStr | None = Field(
        default=None, description="A Redis or Valkey, Sentinels or a cluster to keep sessions in."
    )
    device: Device = Field(default="auto", description="Where the model computes.")
    durability: Durability = Field(default="fsync", description="What an acknowledged change survives.")
    api_keys: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
        default=(), description="Keys, comma separated."
    )
    api_keys_file: Path | None = Field(
        default=None, description="JSON: sha256, tenant, scopes, quotas of each key."
    )
    trusted_proxies: Annotated[tuple[IPvAnyNetwork, ...], NoDecode] = Field(
        default=(),
        description="Addresses or networks of proxies, comma separated: what they say in `X-Forwarded-For` is"
        " where a request comes from.",
    )
    otel: bool = Field(
        default=False,
        description="Trace requests by OpenTelemetry; its own variables OTEL_* say where to, and how many.",
    )
    log_level: LogLevel = Field(default="info", description="The least severe line written.")
    audit_file: Path | None = Field(
        default=None, description="Where changing calls are written down; beside the log if unset."
    )
    install_functions: bool = Field(
        default=True,
        description="Install the function library if the store's user may; else `rlstm store install`"
        " must have done it.",
    )
    allow_weaker: bool = Field(
        default=False, description="Start although the store keeps less than promised."
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="CPU threads that compute; as many as there are cores if unset.",
    )
    rows: int = Field(
        default=256,
        ge=1,
        le=65_536,
        description="Rows of a batch step, one for each expert of a session: more of them share each matrix"
        " product, fewer make a batch step, which every request waits for, shorter.",
    )
    cache_bytes: int = Field(
        default=512 * 2**20,
        ge=0,
        le=2**50,
        description="Memory for copies of sessions; those that do not fit are loaded from the store when they"
        " are asked for.",
    )
    limits: Limits = Limits()

    @field_validator("model", "api_keys", "trusted_proxies", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return listed(value) if isinstance(value, str) else value

    @field_validator("api_keys")
    @classmethod
    def _refuse_weak_keys(cls, keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        for key in keys:
            secret = key.get_secret_value()
            if len(secret) < 8 or not secret.isascii() or not secret.isprintable() or " " in secret:
                raise ValueError("a key is at least 8 printable ASCII characters without spaces")
        return keys

    @model_validator(mode="after")
    def _refuse_open_host(self) -> Settings:
        if not self.has_keys and not is_loopback(self.host):
            raise ValueError(
                "without keys the server binds to 127.0.0.1 only: set RLSTM_API_KEYS or RLSTM_API_KEYS_FILE"
                " to bind RLSTM_HOST elsewhere"
            )
        return self

    @model_validator(mode="after")
    def _refuse_replica_without_any(self) -> Settings:
        if self.durability == "replica" and self.redis_url is None:
            raise ValueError("RLSTM_DURABILITY: replica needs RLSTM_REDIS_URL: the embedded store has none")
        return self

    @property
    def models(self) -> tuple[ModelSetting, ...]:
        """Those that are to be served, the default first."""
        return tuple(map(ModelSetting.of, self.model))

    @property
    def has_keys(self) -> bool:
        """Whether callers must show a key."""
        return bool(self.api_keys) or self.api_keys_file is not None


def listed(text: str) -> tuple[str, ...]:
    """Read what is comma separated."""
    return tuple(part for piece in text.split(",") if (part := piece.strip()))


def is_loopback(host: str) -> bool:
    """Whether an address, or the name `localhost`, reaches this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def load_settings(**options: object) -> Settings:
    """Read the environment, and the folder of secrets; options that are not None win over both.

    Raises:
        StartupError: a setting is wrong; the sentence names its variable and never repeats its value.
    """
    given = {name: value for name, value in options.items() if value is not None}
    secrets = _secrets_dir()
    if unknown := list(_unknown(secrets)):
        raise StartupError("; ".join(unknown))
    try:
        return Settings(_secrets_dir=secrets, **given)  # type: ignore[arg-type, call-arg]
    except ValidationError as error:
        raise StartupError("; ".join(_sentences(error))) from None


def _secrets_dir() -> Path | None:
    named = os.environ.get(SECRETS_DIR)
    if not named:
        return None
    if not Path(named).is_dir():
        raise StartupError(f"{SECRETS_DIR}: there is no folder {named}")
    return Path(named)


def _unknown(secrets: Path | None) -> Iterator[str]:
    """Name what looks like a setting and is none, variables and files, and what it is nearest to."""
    nested = (f"LIMITS__{name}".upper() for name in Limits.model_fields)
    known = [PREFIX + name for name in (*map(str.upper, Settings.model_fields), *nested, *ELSEWHERE)]
    files = () if secrets is None else (path.name for path in secrets.iterdir())
    for name in sorted({*os.environ, *files}):
        if name.upper().startswith(PREFIX) and name.upper() not in known:
            near = get_close_matches(name.upper(), known, n=1)
            yield f"{name}: there is no such setting" + (f"; {near[0]} may be meant" if near else "")


def _sentences(error: ValidationError) -> list[str]:
    sentences = []
    for fault in error.errors(include_url=False, include_input=False):
        name = "__".join(str(part) for part in fault["loc"]).upper()
        sentences.append(f"{PREFIX}{name}: {reason(fault)}" if name else reason(fault))
    return sentences
