"""The options that several commands share, each written once as an annotated type."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rlstm_client.models import Kind, Unit

Url = Annotated[str, typer.Option("--url", envvar="RLSTM_URL", help="Where the server is.")]
ApiKey = Annotated[
    str | None,
    typer.Option("--api-key", envvar="RLSTM_API_KEY", help="The key; better in the environment than here."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as one JSON object.")]
ModelOption = Annotated[
    str | None, typer.Option("--model", help="Of those that the server has; default: its first.")
]
Local = Annotated[
    str | None, typer.Option("--local", metavar="MODEL", help="Use this model here, without a server.")
]
UnitOption = Annotated[Unit, typer.Option("--unit", help="Of every log-probability.")]

Text = Annotated[str | None, typer.Argument(help="The text. Without it, --file or standard input is read.")]
TextFile = Annotated[Path | None, typer.Option("--file", "-f", help="Read the text from this file (UTF-8).")]
SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")]
IfMatch = Annotated[
    int | None, typer.Option("--if-match", metavar="VERSION", help="Refuse if the session is not at it.")
]
SnapshotName = Annotated[str, typer.Argument(metavar="NAME", help="The snapshot's name.")]
SessionName = Annotated[
    str | None, typer.Option("--name", help="A name of your own, unique among your sessions.")
]
TTL = Annotated[float | None, typer.Option("--ttl", metavar="SECONDS", help="Expire when unused so long.")]
Metadata = Annotated[
    list[str] | None, typer.Option("--metadata", metavar="NAME=VALUE", help="A note of yours.")
]
IdempotencyKey = Annotated[
    str | None,
    typer.Option("--key", metavar="KEY", help="Repeated with the same key, the command takes effect once."),
]

MaxTokens = Annotated[int | None, typer.Option("--max-tokens", "-n", help="At most so many new tokens.")]
Temperature = Annotated[float | None, typer.Option("--temperature", "-t", help="0 is greedy.")]
TopK = Annotated[int | None, typer.Option("--top-k", help="Keep the k most probable tokens.")]
TopP = Annotated[float | None, typer.Option("--top-p", help="Keep the fewest tokens of this probability.")]
MinP = Annotated[float | None, typer.Option("--min-p", help="Keep tokens this probable next to the best.")]
Penalty = Annotated[float | None, typer.Option("--repetition-penalty", help="On tokens seen before.")]
Seed = Annotated[int | None, typer.Option("--seed", help="The same seed gives the same text.")]
Stop = Annotated[list[str] | None, typer.Option("--stop", help="End before this text; may be repeated.")]

KindOption = Annotated[
    Kind | None, typer.Option("--kind", help="What may change; default: the model's first.")
]
NumFastWeights = Annotated[
    int | None,
    typer.Option("--fast-weights", metavar="P", help="How many numbers that is, of those there are."),
]
Experts = Annotated[
    int | None,
    typer.Option("--experts", metavar="1|2|4", help="Learning rates to mix, the static one included."),
]
RateScale = Annotated[
    float | None,
    typer.Option("--rate-scale", help="Multiplies the calibrated learning rate; 0 never learns."),
]
NoStatic = Annotated[
    bool,
    typer.Option("--no-static", help="Read without the weights as loaded beside: cheaper, no gain is known."),
]


def adaptation(
    kind: Kind | None,
    num_fast_weights: int | None,
    experts: int | None,
    rate_scale: float | None,
    no_static: bool,
) -> dict[str, Any] | None:
    """Return what was asked of learning; None when nothing was."""
    asked = {
        "kind": kind,
        "num_fast_weights": num_fast_weights,
        "experts": experts,
        "rate_scale": rate_scale,
        "static": False if no_static else None,
    }
    return {name: value for name, value in asked.items() if value is not None} or None
