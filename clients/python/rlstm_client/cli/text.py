"""`rlstm score` and `rlstm generate`: what a text costs, and how it goes on."""

from typing import Unpack

import click

from rlstm_client import AsyncClient
from rlstm_client.cli import inputs, output
from rlstm_client.cli.kept import Service, service
from rlstm_client.models import Scores
from rlstm_client.options import GenerateOptions, ScoreOptions


@click.command()
@inputs.text
@inputs.each_token
@inputs.options(ScoreOptions, "model")
@service
@inputs.source
@inputs.answers
def score(
    service: Service,
    source: inputs.Source,
    text: str | None,
    each_token: bool,
    **given: Unpack[ScoreOptions],
) -> output.Scored:
    """Score a text: how many bits each byte of it costs the model. Options of learning imply --adapt.

    Example: rlstm score --words "The old man the boat."
    """
    whole = source.whole(text)
    scores: Scores = "tokens" if each_token or given.get("top") else "totals"
    options: ScoreOptions = {**given, "scores": scores}
    if service.model and not service.local:
        options["model"] = service.model
    return output.Scored(service.run(lambda client: client.score(whole, **options)), whole)


@click.command()
@click.argument("prompt", required=False, help="The text to continue; none starts a text.")
@inputs.options(GenerateOptions, "model", "unit")
@service
@inputs.source
@inputs.as_json
def generate(
    service: Service,
    source: inputs.Source,
    prompt: str | None,
    as_json: bool,
    **given: Unpack[GenerateOptions],
) -> None:
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
        output.print_json(service.run(lambda client: client.generate(text, **given)))
    else:
        service.run(as_it_comes)
