"""`rlstm generate`: the continuation of a text."""

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from rlstm_client import _wire
from rlstm_client._http import DEFAULT_URL
from rlstm_client.cli import arguments, commands, output
from rlstm_client.cli.texts import nothing_piped, whole_text
from rlstm_client.client import Client
from rlstm_client.models import Event, Generation, TokenEvent


def generate(
    prompt: Annotated[str | None, typer.Argument(help="The text to continue; none starts a text.")] = None,
    *,
    file: arguments.TextFile = None,
    max_tokens: arguments.MaxTokens = None,
    temperature: arguments.Temperature = None,
    top_k: arguments.TopK = None,
    top_p: arguments.TopP = None,
    min_p: arguments.MinP = None,
    repetition_penalty: arguments.Penalty = None,
    seed: arguments.Seed = None,
    stop: arguments.Stop = None,
    model: arguments.ModelOption = None,
    as_json: arguments.Json = False,
    url: arguments.Url = DEFAULT_URL,
    api_key: arguments.ApiKey = None,
    local: arguments.Local = None,
) -> None:
    """Continue a prompt; the text is printed as it comes."""
    text = "" if prompt is None and file is None and nothing_piped() else whole_text(prompt, file)
    options: dict[str, Any] = {
        "model": model,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
        "stop": stop or None,
    }
    if local:
        answer = commands.act_locally("generate", local, _wire.generate(text, **options))
        print_generation(answer, as_json=as_json)
        return
    with Client(url, api_key=api_key) as client:
        if as_json:
            print_generation(client.generate(text, **options), as_json=True)
        else:
            print_events(client.generate(text, stream=True, **options))


def print_generation(generation: Generation, *, as_json: bool) -> None:
    """Print a whole generation."""
    if as_json:
        output.print_json(generation)
    else:
        output.write(generation.text + "\n")


def print_events(events: Iterable[Event]) -> None:
    """Print the text of a stream as it comes."""
    for event in events:
        if isinstance(event, TokenEvent):
            output.write(event.text)
    output.write("\n")
