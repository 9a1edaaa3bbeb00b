"""`rlstm score` and `rlstm generate`: what a text costs, and how it goes on."""

from typing import Annotated, Any, Unpack

import typer

from rlstm_client import Client, EventStream, _calls
from rlstm_client.cli import commands, inputs, output
from rlstm_client.models import Generation

score_app = typer.Typer(add_completion=False, rich_markup_mode=None)
generate_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@inputs.command(score_app)
def score(
    client: Client,
    text: inputs.Text = None,
    *,
    file: inputs.TextFile = None,
    context: Annotated[str | None, typer.Option(help="Read before the text, and not scored.")] = None,
    unit: inputs.UnitOption = "bits",
    tokens: Annotated[bool, typer.Option("--tokens", help="Print every token.")] = False,
    words: Annotated[bool, typer.Option("--words", help="Print every word.")] = False,
    top: Annotated[int, typer.Option(min=0, help="With --json: alternatives in each token's place.")] = 0,
    adapt: Annotated[bool, typer.Option("--adapt", help="Learn inside the text as it is read.")] = False,
    local: inputs.Local = None,
    **given: Unpack[inputs.Scoring],
) -> output.Scored:
    """Score a text: how many bits each byte of it costs the model. Options of learning imply --adapt.

    Example: rlstm score --words "The old man the boat."
    """
    whole = inputs.whole_text(text, file)
    options: dict[str, Any] = {
        "context": context,
        "unit": unit,
        "scores": "tokens" if tokens or top else "totals",
        "words": words or None,
        "top": top or None,
        "adapt": adapt or None,
        **inputs.adaptation(given),
    }
    if local:
        result = commands.act_locally("score", local, _calls.score(whole, options))
    else:
        result = client.score(whole, **options)
    return output.Scored(result, whole)


@inputs.command(generate_app)
def generate(
    client: Client,
    server: inputs.Server,
    prompt: Annotated[str | None, typer.Argument(help="The text to continue; none starts a text.")] = None,
    *,
    file: inputs.TextFile = None,
    local: inputs.Local = None,
    **given: Unpack[inputs.Generating],
) -> Generation | EventStream:
    """Continue a prompt; the text is printed as it comes.

    Example: rlstm generate "It was a dark and" --max-tokens 40 --seed 1
    """
    text = (
        "" if prompt is None and file is None and inputs.nothing_piped() else inputs.whole_text(prompt, file)
    )
    if local:
        answer: Generation = commands.act_locally("generate", local, _calls.generate(text, given))
        return answer
    if not server["as_json"]:
        return client.generate(text, stream=True, **given)
    return client.generate(text, **given)
