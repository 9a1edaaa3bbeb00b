"""`rlstm score`: the log-probability of a text."""

from typing import Annotated, Any

import typer

from rlstm_client import _wire
from rlstm_client._http import DEFAULT_URL
from rlstm_client.cli import arguments, commands, output
from rlstm_client.cli.texts import whole_text
from rlstm_client.client import Client


def score(
    text: arguments.Text = None,
    *,
    file: arguments.TextFile = None,
    context: Annotated[str | None, typer.Option(help="Read before the text, and not scored.")] = None,
    unit: arguments.UnitOption = "bits",
    tokens: Annotated[bool, typer.Option("--tokens", help="Print every token.")] = False,
    words: Annotated[bool, typer.Option("--words", help="Print every word.")] = False,
    top: Annotated[int, typer.Option(min=0, help="With --json: alternatives in each token's place.")] = 0,
    adapt: Annotated[bool, typer.Option("--adapt", help="Learn inside the text as it is read.")] = False,
    kind: arguments.KindOption = None,
    num_fast_weights: arguments.NumFastWeights = None,
    experts: arguments.Experts = None,
    rate_scale: arguments.RateScale = None,
    no_static: arguments.NoStatic = False,
    model: arguments.ModelOption = None,
    as_json: arguments.Json = False,
    url: arguments.Url = DEFAULT_URL,
    api_key: arguments.ApiKey = None,
    local: arguments.Local = None,
) -> None:
    """Score a text: how many bits each byte of it costs the model. Options of learning imply --adapt."""
    given = whole_text(text, file)
    options: dict[str, Any] = {
        "model": model,
        "context": context,
        "unit": unit,
        "scores": "tokens" if tokens or top else "totals",
        "words": words or None,
        "top": top or None,
        "adapt": adapt or None,
        "adaptation": arguments.adaptation(kind, num_fast_weights, experts, rate_scale, no_static),
    }
    if local:
        result = commands.act_locally("score", local, _wire.score(given, **options))
    else:
        with Client(url, api_key=api_key) as client:
            result = client.score(given, **options)
    if as_json:
        output.print_json(result)
    else:
        output.print_scores(result.items[0], given, result.unit)
