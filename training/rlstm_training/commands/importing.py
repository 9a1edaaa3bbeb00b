"""``rlstm import``: a torch.nn.LSTM language model that was trained elsewhere, as a checkpoint of ours."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rlstm_model.checkpoint import CARD_HEADER, save
from rlstm_model.config import ModelConfig
from rlstm_model.parameters import Parameters
from rlstm_model.vocab import PieceVocab, Vocab, WordVocab
from rlstm_training.commands.console import AsJson, command, show_json
from rlstm_training.imports.tensors import GATES, parameters_of, read_state_dict
from rlstm_training.imports.vocabularies import Specials, listed, pieces

_StateDict = Annotated[
    Path, typer.Argument(help="A state dict: safetensors, or what torch.save wrote of one.")
]
_Out = Annotated[Path, typer.Option(help="The folder to write. A checkpoint that is there is replaced.")]
_Words = Annotated[
    Path | None, typer.Option(help="A word list: a word a line in id order, or `word id`, or JSON.")
]
_Characters = Annotated[
    Path | None,
    typer.Option(help="A list of characters, in the same forms; <space> and <newline> are read so."),
]
_Tokenizer = Annotated[Path | None, typer.Option(help="A tokenizer.json, or a sentencepiece model.")]
_Eos = Annotated[str | None, typer.Option(help="The token that ends a line (found: <eos>, </s>, ..).")]
_Bos = Annotated[str | None, typer.Option(help="That which begins a text (found: <s>, ..; else the same).")]
_Unk = Annotated[str | None, typer.Option(help="That for what the vocabulary lacks (found: <unk>, ..).")]
_Lower = Annotated[bool, typer.Option("--lower", help="The model reads lower case alone.")]
_Gates = Annotated[str, typer.Option(help="The order of its gates: i, f, o, and g for what is written.")]
_Tied = Annotated[bool, typer.Option("--tied", help="There is no output matrix: it is the embedding's.")]
_NoBias = Annotated[bool, typer.Option("--no-bias", help="Biases that are not there are zero.")]
_Half = Annotated[bool, typer.Option("--half", help="Store weights in half precision.")]


@command
def import_model(
    file: _StateDict,
    out: _Out,
    words: _Words = None,
    characters: _Characters = None,
    tokenizer: _Tokenizer = None,
    eos: _Eos = None,
    bos: _Bos = None,
    unk: _Unk = None,
    lower: _Lower = False,
    gates: _Gates = GATES,
    tied: _Tied = False,
    no_bias: _NoBias = False,
    half: _Half = False,
    as_json: AsJson = False,
) -> None:
    """Make a checkpoint of a torch.nn.LSTM language model's state dict and its vocabulary.

    It is served and scored at once; to have sessions learn, calibrate it.
    """
    vocabularies = [given for given in (words, characters, tokenizer) if given is not None]
    if len(vocabularies) != 1:
        raise typer.BadParameter("name one of --words, --characters, --tokenizer")
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
    typer.echo(f"model: {folder}: {config.num_parameters:,} weights, {config.num_layers} layers{tied}")
    typer.echo(f"vocabulary: {vocab.size:,} {vocab.kind}; a text is read after {begins}")
    typer.echo(f"to have sessions learn: rlstm calibrate {folder} --corpus TEXT")
