"""`rlstm score` and `rlstm generate`: what a text costs, and how it goes on."""

from typing import Annotated, Unpack

import typer

from rlstm_client import AsyncClient
from rlstm_client.cli import inputs, output
from rlstm_client.cli.kept import Service
from rlstm_client.models import Generation, Scores
from rlstm_client.options import GenerateOptions, ScoreOptions


@inputs.command()
def score(
    service: Service,
    source: inputs.Source,
    text: inputs.Text = None,
    *,
    in_unit: inputs.UnitOption = "bits",
    each_token: inputs.EachToken = False,
    **given: Unpack[ScoreOptions],
) -> output.Scored:
    """Score a text: how many bits each byte of it costs the model. Options of learning imply --adapt.

    Example: rlstm score --words "The old man the boat."
    """
    whole = source.whole(text)
    scores: Scores = "tokens" if each_token or given.get("top") else "totals"
    options: ScoreOptions = {**given, "unit": in_unit, "scores": scores}
    if service.model and not service.local:
        options["model"] = service.model
    return output.Scored(service.run(lambda client: client.score(whole, **options)), whole)


@inputs.command()
def generate(
    service: Service,
    source: inputs.Source,
    prompt: Annotated[str | None, typer.Argument(help="The text to continue; none starts a text.")] = None,
    *,
    as_json: inputs.AsJson = False,
    **given: Unpack[GenerateOptions],
) -> Generation | None:
    """Continue a prompt; the text is printed as it comes.

    Example: rlstm generate "It was a dark and" --max-tokens 40 --seed 1
    """
    none = prompt is None and source.file is None and inputs.nothing_piped()
    text = "" if none else source.whole(prompt)
    if service.model and not service.local:
        given["model"] = service.model

    async def as_it_comes(client: AsyncClient) -> None:
        async with client.generate_stream(text, **given) as events:
            async for event in events:
                output.write_event(event)

    if as_json:
        return service.run(lambda client: client.generate(text, **given))
    return service.run(as_it_comes)
