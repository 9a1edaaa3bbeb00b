"""``rlstm import``: a torch.nn.LSTM language model that was trained elsewhere, as a checkpoint of ours."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from rlstm_client.cli import inputs
from rlstm_client.cli.output import check_free
from rlstm_model.checkpoint import CARD_HEADER, save
from rlstm_model.config import ModelConfig
from rlstm_model.parameters import Parameters
from rlstm_model.vocab import PieceVocab, Vocab, WordVocab
from rlstm_training.commands import console
from rlstm_training.commands.console import show_json
from rlstm_training.imports.tensors import GATES, parameters_of, read_state_dict
from rlstm_training.imports.vocabularies import Specials, listed, pieces


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is imported, and how its file is read."""

    file: Path = inputs.argument("A state dict: safetensors, or what torch.save wrote of one.")
    out: Path = inputs.option("The folder to write.", required=True)
    words: Path | None = inputs.option("A word list: a word a line in id order, or `word id`, or JSON.")
    characters: Path | None = inputs.option(
        "A list of characters, in the same forms; <space> and <newline> are read so."
    )
    tokenizer: Path | None = inputs.option("A tokenizer.json, or a sentencepiece model.")
    eos: str | None = inputs.option("The token that ends a line (found: <eos>, </s>, ..).")
    bos: str | None = inputs.option("That which begins a text (found: <s>, ..; else the same).")
    unk: str | None = inputs.option("That for what the vocabulary lacks (found: <unk>, ..).")
    lower: bool = inputs.option("The model reads lower case alone.", default=False)
    gates: str = inputs.option("The order of its gates: i, f, o, and g for what is written.", default=GATES)
    tied: bool = inputs.option("There is no output matrix: it is the embedding's.", default=False)
    no_bias: bool = inputs.option("Biases that are not there are zero.", default=False)
    half: bool = inputs.option("Store weights in half precision.", default=False)

    def vocab(self, size: int) -> WordVocab | PieceVocab:
        """The vocabulary, of so many tokens. Raises ImportRefused, OSError."""
        specials = Specials(self.eos, self.unk, self.bos, self.lower)
        if self.tokenizer is not None:
            return pieces(self.tokenizer, specials, size)
        file = self.words or self.characters
        assert file is not None
        return listed(file, specials, size, by_character=self.characters is not None)


@console.command("import")
@inputs.given("asked", Asked)
@inputs.force
@inputs.as_json
def import_model(asked: Asked, force: bool, as_json: bool) -> None:
    """Make a checkpoint of a torch.nn.LSTM language model's state dict and its vocabulary.

    It is served and scored at once; to have sessions learn, calibrate it.
    """
    if [asked.words, asked.characters, asked.tokenizer].count(None) != 2:
        raise click.BadParameter("name one of --words, --characters, --tokenizer")
    check_free(asked.out, force=force)
    tensors = read_state_dict(asked.file)
    parameters = parameters_of(tensors, gates=asked.gates, tied=asked.tied, no_bias=asked.no_bias)
    vocab = asked.vocab(parameters.config.vocab_size)
    card = _card(asked.out.name, asked.file, parameters, vocab)
    save(asked.out, parameters, vocab, dtype="F16" if asked.half else "F32", card=card)
    _tell(asked.out, parameters.config, vocab, as_json)


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
