"""`rlstm score` and `rlstm generate`: what a text costs, and how it goes on."""

from typing import Annotated, Unpack

import typer

from rlstm_client import Client, EventStream, _calls
from rlstm_client.cli import commands, inputs, output
from rlstm_client.models import Generation, Scores
from rlstm_client.options import GenerateOptions, ScoreOptions

score_app = typer.Typer(add_completion=False, rich_markup_mode=None)
generate_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@inputs.command(score_app)
def score(
    client: Client,
    source: inputs.Source,
    text: inputs.Text = None,
    *,
    in_unit: inputs.UnitOption = "bits",
    each_token: inputs.EachToken = False,
    local: inputs.Local = False,
    **given: Unpack[ScoreOptions],
) -> output.Scored:
    """Score a text: how many bits each byte of it costs the model. Options of learning imply --adapt.

    Example: rlstm score --words "The old man the boat."
    """
    whole = source.whole(text)
    scores: Scores = "tokens" if each_token or given.get("top") else "totals"
    options: ScoreOptions = {**given, "unit": in_unit, "scores": scores}
    if local:
        result = commands.act_locally("score", options.pop("model", None), _calls.score(whole, options))
    else:
        result = client.score(whole, **options)
    return output.Scored(result, whole)


@inputs.command(generate_app)
def generate(
    client: Client,
    server: inputs.Server,
    source: inputs.Source,
    prompt: Annotated[str | None, typer.Argument(help="The text to continue; none starts a text.")] = None,
    *,
    local: inputs.Local = False,
    **given: Unpack[GenerateOptions],
) -> Generation | EventStream:
    """Continue a prompt; the text is printed as it comes.

    Example: rlstm generate "It was a dark and" --max-tokens 40 --seed 1
    """
    none = prompt is None and source.file is None and inputs.nothing_piped()
    text = "" if none else source.whole(prompt)
    if local:
        answer: Generation = commands.act_locally(
            "generate", given.pop("model", None), _calls.generate(text, given)
        )
        return answer
    if not server["as_json"]:
        return client.generate(text, stream=True, **given)
    return client.generate(text, **given)
