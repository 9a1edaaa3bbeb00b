"""English as people write it, made from other corpora: a corpora folder for models of subwords.

    python training/prose.py OUT --novels FOLDER [--novels FOLDER ...] [--articles FOLDER ...]

Reads dickens, enwiki6, wikitext-2 and the novels of the corpora folder, and further novels from folders of
``Author_Title[_Year].txt`` and articles of Wikipedia from folders of dumps, ``*.xml``, and of wiki text,
``Title.txt``. Writes to OUT, with a manifest:

    novels-plain    novels, a paragraph a line; a tenth in lower case, a twentieth in capitals
    novels-wrapped  a third of these novels, with their lines as published
    dickens-crlf    dickens as it is, but for the few characters that are no UTF-8
    wiki-plain      wikitext-2 as it was before it was cut into words, and enwiki6 without markup, as novels
    wiki-markup     enwiki6 as it is, but for the validation text that stands in a stream; then the articles
    wikitext-tokens wikitext-2 as it is
    capitals        a part of novels-plain and of wiki-plain, in capitals

Of a book that stands in a stream no byte is read, and lines that have a part in 13 words in a row of a
validation text, a test text or a stream are dropped, as are articles that
these texts have in another version.
"""

import hashlib
import html
import json
import lzma
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from rlstm_training.corpora import Split
from rlstm_training.corpora.reading import load_corpus, load_file, load_stream, read_manifest, stream_names
from rlstm_training.corpora.texts import unwrap

SPLITS: tuple[Split, ...] = ("train", "valid", "test")
HELD_OUT: dict[str, Split] = {"ford_girl": "valid", "lee_penelope": "test"}
# Too new to be free everywhere: published after 1927, or by an author who died after 1954.
_NOT_FREE = ("bennet_imperial", "galsworthy_river", "schreiner_undine", "woolf_years", "forster_")
_PASSAGE = 8_000
_GRAM = 13
_CAPITALS = 24_000_000
_PUBLIC_DOMAIN, _WIKIPEDIA = "public domain", "CC BY-SA 3.0, the Wikipedia contributors"


@click.command()
@click.argument("out")
@click.option("--novels", type=click.Path(path_type=Path), multiple=True, help="Folders of novels.")
@click.option("--articles", type=click.Path(path_type=Path), multiple=True, help="Folders of articles.")
def main(out: Path, novels: Sequence[Path], articles: Sequence[Path]) -> None:
    """Make the folder, and say what is in it."""
    forbidden = np.unique(np.concatenate([grams(words(text)) for text in test_texts()]))
    records = []
    for name, licence, parts in datasets(novels, articles):
        kept, dropped = without(parts["train"], forbidden)
        for split in SPLITS:
            texts = kept if split == "train" else parts[split]
            text = varied(texts) if name.endswith("plain") else "\n\n".join(texts)
            records.append(_write(out, name, split, text.encode(), licence))
            if split == "train":
                mine = grams(words(text))
                shared = int(_among(mine, forbidden).sum())
                click.echo(
                    f"{name}: {dropped} lines dropped; {len(mine):,} 13-grams are left, {shared} shared"
                )
    (out / "manifest.json").write_text(json.dumps({"files": records}, indent=1))


def datasets(
    novel_folders: Sequence[Path], article_folders: Sequence[Path]
) -> Iterator[tuple[str, str, dict[Split, list[str]]]]:
    """Name, licence and texts of each dataset, still with what it shares with others."""
    novels = {split: novels_of(novel_folders, split) for split in SPLITS}
    dickens = {split: _ascii_quotes(load_corpus("dickens", split)) for split in SPLITS}
    enwiki = {split: load_corpus("enwiki6", split).decode() for split in SPLITS}
    wikitext = {split: load_corpus("wikitext-2", split).decode() for split in SPLITS}
    more = articles_of(article_folders, titles(enwiki["valid"] + enwiki["test"]))
    # The first 200,000 bytes of this validation text stand in a stream.
    enwiki["valid"] = enwiki["valid"].encode()[200_000:].decode(errors="ignore")
    books = {s: [*map(plain, [*novels[s], dickens[s].replace("\r\n", "\n")])] for s in SPLITS}
    yield "novels-plain", _PUBLIC_DOMAIN, books
    yield "novels-wrapped", _PUBLIC_DOMAIN, {s: novels[s][::3] for s in SPLITS}
    yield "dickens-crlf", _PUBLIC_DOMAIN, {s: [dickens[s]] for s in SPLITS}
    wiki = {s: [restored(wikitext[s]), without_markup(enwiki[s])] for s in SPLITS}
    yield "wiki-plain", _WIKIPEDIA, wiki
    yield "wiki-markup", _WIKIPEDIA, {s: [enwiki[s], *(more if s == "train" else ())] for s in SPLITS}
    yield "wikitext-tokens", _WIKIPEDIA, {s: [wikitext[s]] for s in SPLITS}
    capitals = {s: ["\n".join(books[s])[:_CAPITALS].upper()] for s in SPLITS}
    capitals["train"].append("\n".join(wiki["train"])[: _CAPITALS // 4].upper())
    yield "capitals", f"{_PUBLIC_DOMAIN}; a fifth {_WIKIPEDIA}", capitals


def novels_of(folders: Sequence[Path], split: Split) -> list[str]:
    """The novels of a split, each once, none of them in a stream; Dickens has a corpus of his own."""
    used = {extent[0].split(" ")[0] for name in stream_names() for extent in load_stream(name)}
    taken = {_key(name) for name in used if "_" in name}
    ours = [record["path"] for record in read_manifest() if record["dataset"] == "novels"]
    sources = [(Path(path).name.removesuffix(".xz"), load_file(path)) for path in sorted(ours)]
    sources += [(path.name, path.read_bytes()) for folder in folders for path in sorted(folder.glob("*.txt"))]
    found = []
    for name, raw in sources:
        key = _key(name)
        free = key not in taken and not key.startswith(("dickens_", *_NOT_FREE))
        if free and HELD_OUT.get(key, "train") == split:
            taken.add(key)
            found.append(_lines(raw.decode("utf-8-sig")))
    return found


def titles(xml: str) -> set[str]:
    """Those of the articles in a dump."""
    return set(re.findall(r"<title>(.*?)</title>", xml))


def articles_of(folders: Sequence[Path], held_out: set[str]) -> list[str]:
    """Articles but for those held out, each as a page of a dump."""
    found = []
    for path in sorted(path for folder in folders for path in folder.iterdir()):
        text = path.read_text("utf-8", errors="ignore")
        if path.suffix == ".xml":
            found += re.findall(r"  <page>.*?</page>\n", text, re.DOTALL)
        elif text.strip():
            title = re.sub(r"[-_]", " ", path.stem)
            text = text if "&lt;" in text else html.escape(text).replace("&#x27;", "'")
            found.append(
                f"  <page>\n    <title>{title}</title>\n    <ns>0</ns>\n    <revision>\n"
                f'      <text xml:space="preserve">{text}</text>\n    </revision>\n  </page>\n'
            )
    return [page for page in found if not titles(page) & held_out]


def _key(name: str) -> str:
    return "_".join(name.removesuffix(".txt").lower().split("_")[:2])


def _lines(text: str) -> str:
    """A published text with LF ends, no blanks before them and at most one empty line in a row."""
    text = re.sub(r"[ \t]+\n", "\n", text.replace("\r\n", "\n"))
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n")


def _ascii_quotes(raw: bytes) -> str:
    return raw.decode("cp1252").replace("\x92", "'")


def plain(book: str) -> str:
    """A paragraph a line; dashes and no underscores, as people write."""
    text = re.sub(r"(?<=[a-z,;-])\n(?=[a-z])", " ", unwrap(book.encode()).decode())
    return re.sub(r" ?--+ ?", "—", re.sub(r"\b_|_\b", "", text))


def restored(tokens: str) -> str:
    """WikiText's tokens as the text that they were cut from; sentences with an unknown word are dropped."""
    text = re.sub(r" @(.)@ ", r"\1", tokens)
    lines = (re.sub(r"^ (= )+(.*?)( =)+ $", r"\2", line).strip() for line in text.split("\n"))
    return "\n".join(filter(None, map(_restored_line, lines))) + "\n"


def _restored_line(line: str) -> str:
    sentences = re.split(r"(?<= [.?!]) (?=[A-Z\"])", line)
    line = " ".join(sentence for sentence in sentences if "<unk>" not in sentence)
    quote = iter(line.count('"') * [r"“", "”"])
    line = re.sub('"', lambda _: next(quote), line)
    line = re.sub(r" ([,.;:?!%)\]”])|([(\[“$£€#]) ", lambda found: found[1] or found[2], line)
    line = re.sub(r" ('(?:s|re|ve|ll|d|m|t)\b)", r"\1", line).replace(" n't", "n't").replace("s ' ", "s' ")
    return re.sub(r"(?<=\d) (\u2013) (?=\d)|(?<=\w) (/) (?=\w)", lambda f: f[1] or f[2], line).translate(
        {0x201C: '"', 0x201D: '"'}
    )


def without_markup(xml: str) -> str:
    """The prose of articles: paragraphs of at least 100 characters."""
    texts = re.findall(r"<text [^>]*>(?!#REDIRECT)(.*?)(?:</text>|\Z)", xml, flags=re.DOTALL)
    text = html.unescape(html.unescape("\n".join(texts)))
    text = re.sub(
        r"<!--.*?-->|<ref[^>/]*/>|<ref.*?</ref>|<math.*?</math>|</?\w[^>]*>", "", text, flags=re.DOTALL
    )
    for _ in range(4):
        text = re.sub(r"\{\{[^{}]*\}\}|\{\|[^{}]*\|\}|\[\[(?:File|Image|Category):[^\[\]]*\]\]", "", text)
        text = re.sub(r"\[\[(?:[^\[\]|:]*\|)?([^\[\]|:]+)\]\]", r"\1", text)
    text = re.sub(r"\[https?:[^ \]]*\s?([^\]]*)\]|'{2,}", lambda found: found[1] or "", text)
    kept = (
        line for line in text.split("\n") if len(line) >= 100 and not re.search(r"^[*#:;|!=]|[{}\[\]|]", line)
    )
    return "\n".join(re.sub(r" ?\( ?\)|  +", " ", line).strip() for line in kept) + "\n"


def varied(texts: list[str], *, seed: int = 1) -> str:
    """The texts one after the other, in passages: some without capitals, in capitals, or spaced out."""
    draw = random.Random(seed)
    passages = []
    for passage in (p for text in texts for p in re.findall(rf".{{{_PASSAGE}}}.*?\n|.+", text, re.DOTALL)):
        case, spaced, typographic = draw.random(), draw.random() < 0.3, draw.random() < 0.1
        written = passage.lower() if case < 0.1 else passage.upper() if case < 0.15 else passage
        written = written.replace("\n", "\n\n") if spaced else written
        passages.append(_typographic(written) if typographic else written)
    return "".join(passages)


def _typographic(text: str) -> str:
    text = re.sub(r"(?<![^\s(—])\"", "“", text).replace('"', "”")
    return re.sub(r"(?<![^\s(—“])'", "\u2018", text).replace("'", "\u2019")


def test_texts() -> Iterator[str]:
    """Validation texts, test texts and streams."""
    for corpus in ("dickens", "enwiki6", "wikitext-2"):
        for split in SPLITS[1:]:
            yield load_corpus(corpus, split).decode(errors="ignore")
    for name in stream_names():
        yield "\n".join(raw.decode(errors="ignore") for _, raw in load_stream(name))


def words(text: str) -> list[str]:
    """Words in lower case."""
    return re.findall(r"[^\W_]+", text.lower())


def grams(found: list[str]) -> NDArray[np.uint64]:
    """A hash of each run of 13 words."""
    if len(found) < _GRAM:
        return np.empty(0, dtype=np.uint64)
    codes = {
        word: int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest()) for word in set(found)
    }
    ids = np.array([codes[word] for word in found], dtype=np.uint64)
    count = len(ids) - _GRAM + 1
    sums = np.zeros(count, dtype=np.uint64)
    for place in range(_GRAM):
        sums = sums * np.uint64(0x9E3779B97F4A7C15) + ids[place : place + count]
    return sums


def _among(mine: NDArray[np.uint64], there: NDArray[np.uint64]) -> NDArray[np.bool_]:
    places = np.searchsorted(there, mine)
    return np.asarray(there[np.minimum(places, len(there) - 1)] == mine)


def without(texts: list[str], forbidden: NDArray[np.uint64]) -> tuple[list[str], int]:
    """The texts without the lines that have a part in a forbidden run of words, and how many these are.

    ``forbidden`` holds sorted hashes.
    """
    kept, dropped = [], 0
    for text in texts:
        lines = text.split("\n")
        found = [words(line) for line in lines]
        owners = np.repeat(np.arange(len(found)), [len(part) for part in found])
        hits = np.flatnonzero(_among(grams([word for part in found for word in part]), forbidden))
        gone = {p for hit in hits for p in range(owners[hit], owners[hit + _GRAM - 1] + 1)}
        dropped += len(gone)
        kept.append("\n".join(line for index, line in enumerate(lines) if index not in gone))
    return kept, dropped


def _write(out: Path, name: str, split: Split, raw: bytes, licence: str) -> dict[str, object]:
    path = out / name / f"{split}.txt.xz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(raw, preset=1))
    return {
        "path": str(path.relative_to(out)),
        "dataset": name,
        "role": split,
        "licence": licence,
        "raw_bytes": len(raw),
        "raw_sha256": hashlib.sha256(raw).hexdigest(),
    }


if __name__ == "__main__":
    main()
