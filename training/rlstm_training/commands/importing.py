"""``rlstm import``: a torch.nn.LSTM language model that was trained elsewhere, as a checkpoint of ours."""

from pathlib import Path
from typing import Any

import click

from rlstm_model.checkpoint import CARD_HEADER, save
from rlstm_model.config import ModelConfig
from rlstm_model.parameters import Parameters
from rlstm_model.vocab import PieceVocab, Vocab, WordVocab
from rlstm_training.commands import console
from rlstm_training.commands.console import show_json
from rlstm_training.imports.tensors import GATES, parameters_of, read_state_dict
from rlstm_training.imports.vocabularies import Specials, listed, pieces


@console.command("import")
@click.argument("file", type=console.FILE, help="A state dict: safetensors, or what torch.save wrote of one.")
@click.option(
    "--out",
    type=console.FILE,
    required=True,
    help="The folder to write. A checkpoint that is there is replaced.",
)
@click.option(
    "--words", type=console.FILE, help="A word list: a word a line in id order, or `word id`, or JSON."
)
@click.option(
    "--characters",
    type=console.FILE,
    help="A list of characters, in the same forms; <space> and <newline> are read so.",
)
@click.option("--tokenizer", type=console.FILE, help="A tokenizer.json, or a sentencepiece model.")
@click.option("--eos", help="The token that ends a line (found: <eos>, </s>, ..).")
@click.option("--bos", help="That which begins a text (found: <s>, ..; else the same).")
@click.option("--unk", help="That for what the vocabulary lacks (found: <unk>, ..).")
@click.option("--lower", is_flag=True, help="The model reads lower case alone.")
@click.option("--gates", default=GATES, help="The order of its gates: i, f, o, and g for what is written.")
@click.option("--tied", is_flag=True, help="There is no output matrix: it is the embedding's.")
@click.option("--no-bias", is_flag=True, help="Biases that are not there are zero.")
@click.option("--half", is_flag=True, help="Store weights in half precision.")
@console.as_json
def import_model(
    file: Path,
    out: Path,
    words: Path | None,
    characters: Path | None,
    tokenizer: Path | None,
    eos: str | None,
    bos: str | None,
    unk: str | None,
    lower: bool,
    gates: str,
    tied: bool,
    no_bias: bool,
    half: bool,
    as_json: bool,
) -> None:
    """Make a checkpoint of a torch.nn.LSTM language model's state dict and its vocabulary.

    It is served and scored at once; to have sessions learn, calibrate it.
    """
    vocabularies = [given for given in (words, characters, tokenizer) if given is not None]
    if len(vocabularies) != 1:
        raise click.BadParameter("name one of --words, --characters, --tokenizer")
    parameters = parameters_of(read_state_dict(file), gates=gates, tied=tied, no_bias=no_bias)
    specials, size = Specials(eos, unk, bos, lower), parameters.config.vocab_size
    vocab: WordVocab | PieceVocab
    if tokenizer is not None:
        vocab = pieces(tokenizer, specials, size)
    else:
        vocab = listed(vocabularies[0], specials, size, by_character=characters is not None)
    card = _card(out.name, file, parameters, vocab)
    save(out, parameters, vocab, dtype="F16" if half else "F32", card=card)
    _tell(out, parameters.config, vocab, as_json)


def _card(name: str, file: Path, parameters: Parameters, vocab: Vocab) -> str:
    config = parameters.config
    widths = ", ".join(str(own) for _, own in config.layer_widths)
    return (
        f"{CARD_HEADER}\n# {name}\n\nA language model over {vocab.kind}, imported from `{file.name}`: "
        f"{config.num_parameters:,} weights, {config.num_layers} LSTM layers of {widths} units.\n"
    )


def _tell(folder: Path, config: ModelConfig, vocab: WordVocab | PieceVocab, as_json: bool) -> None:
    begins = vocab.bos or vocab.eos
    told: dict[str, Any] = {
        "model": str(folder),
        "parameters": config.num_parameters,
        "layers": config.num_layers,
        "tied": config.tie_embeddings,
        "vocabulary": {"kind": vocab.kind, "size": vocab.size, "bos": begins},
    }
    if as_json:
        show_json(told)
        return
    tied = ", tied embeddings" if config.tie_embeddings else ""
    click.echo(f"model: {folder}: {config.num_parameters:,} weights, {config.num_layers} layers{tied}")
    click.echo(f"vocabulary: {vocab.size:,} {vocab.kind}; a text is read after {begins}")
    click.echo(f"to have sessions learn: rlstm calibrate {folder} --corpus TEXT")
