"""The jobs with the shipped model and real text: what they promise."""

import json
import lzma
import math
import random
import re
from pathlib import Path

import pytest

from rlstm_client import Client
from rlstm_training.corpora import corpora_folder

FOLDER = Path(__file__).parents[3] / "clients" / "python" / "examples"
NOVEL = corpora_folder() / "novels" / "Haggard_Mines_1885.txt.xz"

# What a recogniser that never heard a name may write instead.
SOUNDS_LIKE = {
    "Umbopa": ("Um Bopper", "a bopper", "Umber Pa"),
    "Ignosi": ("Ignacy", "egg nosey", "ignosis"),
    "Twala": ("to allow", "Swaller", "T Waller"),
    "Infadoos": ("in for dues", "infidels", "in Fado's"),
    "Gagool": ("a ghoul", "gargoyle", "Gag Ool"),
    "Scragga": ("scrag her", "Scraggs", "scraggy"),
}
NAME = re.compile("|".join(SOUNDS_LIKE))


def n_best_lists(text):
    """Each sentence of a text that names somebody: as it is, and with all names misheard in three ways."""
    for sentence in re.findall(r'[^.!?]+[.!?]"?', " ".join(text.split())):
        said = sentence.strip()
        if NAME.search(said):
            heard = [NAME.sub(lambda name, way=way: SOUNDS_LIKE[name[0]][way], said) for way in range(3)]
            texts = [said, *heard]
            random.Random(said).shuffle(texts)
            yield {"candidates": [{"text": text} for text in texts], "reference": said}


@pytest.mark.skipif(not NOVEL.is_file(), reason="no novels in RLSTM_CORPORA")
def test_the_lists_are_made_of_the_novel():
    """By one rule for all sentences: nothing was chosen by what a model makes of it."""
    novel = lzma.decompress(NOVEL.read_bytes()).decode()
    before = (FOLDER / "n-best-before.txt").read_text(encoding="utf-8")
    lists = [json.loads(line) for line in (FOLDER / "n-best.jsonl").read_text(encoding="utf-8").splitlines()]
    start = novel.index("\n\n", 203_900) + 2
    end = novel.index("\n\n", 207_400)

    assert before == " ".join(novel[start:end].split()) + "\n"
    made = [{"id": str(number), **row} for number, row in enumerate(n_best_lists(novel[end:213_500]), 1)]
    assert lists == made


@pytest.mark.jobs
@pytest.mark.timeout(900)
def test_learning_changes_the_winners_for_the_better(run, shipped):
    """Names known from the transcript before win where the model as loaded prefers what they sound like."""
    process = run(
        "rescore",
        str(FOLDER / "n-best.jsonl"),
        "--prime",
        str(FOLDER / "n-best-before.txt"),
        "--url",
        shipped.url,
    )
    out, told = process.communicate(timeout=900)
    rows = [json.loads(line) for line in out.splitlines()]
    lists = [json.loads(line) for line in (FOLDER / "n-best.jsonl").read_text(encoding="utf-8").splitlines()]
    said = [row["reference"] for row in lists]
    adapted = [row["text"] == right for row, right in zip(rows, said, strict=True)]
    static = [row["static_text"] == right for row, right in zip(rows, said, strict=True)]
    print(f"\nn-best: right of {len(said)}: static {sum(static)}, adapted {sum(adapted)}\n{told}")

    assert sum(adapted) > sum(static)
    assert any(ours and not theirs for ours, theirs in zip(adapted, static, strict=True))


@pytest.mark.jobs
@pytest.mark.timeout(900)
def test_folded_capitals_cost_little(run, shipped, tmp_path):
    """What a recogniser wrote in capitals costs less than a tenth more than what was printed."""
    lines = (FOLDER / "n-best.jsonl").read_text(encoding="utf-8").splitlines()
    said = [json.loads(line)["reference"] for line in lines]

    def bits(texts, *options):
        file = tmp_path / "lists"
        file.write_text("".join(json.dumps({"candidates": [{"text": text}]}) + "\n" for text in texts))
        out, told = run("rescore", str(file), "--url", shipped.url, *options).communicate(timeout=300)
        assert out, told
        return -sum(
            json.loads(row)["candidates"][0]["static_logprob"] for row in out.splitlines()
        ) / math.log(2)

    capitals = [text.upper() for text in said]
    printed, written, folded = bits(said), bits(capitals), bits(capitals, "--fold-case")
    print(f"\nof the bits as printed: in capitals {written / printed:.2f}, folded {folded / printed:.2f}")
    assert folded < 1.1 * printed
    assert written > 1.3 * printed


@pytest.mark.jobs
@pytest.mark.timeout(900)
def test_lines_of_the_user_get_likelier(run, shipped):
    """After half of a text was typed the other half costs less by what was learned, not by what was read."""
    lines = (FOLDER / "five-kinds.txt").read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("  Say, Muse"))
    verse = lines[start : start + 80]
    typed, held_out = verse[:60], verse[60:]
    process = run("complete", "--url", shipped.url, "--max-tokens", "30", "--name", "verse")
    out, _ = process.communicate("".join(f"{line}\n" for line in [*typed, "? And", "0"]), timeout=900)
    with Client(shipped.url) as client:
        adapted = client.sessions.find("verse")
        static = client.sessions.create(adaptation={"experts": 1, "rate_scale": 0.0, "static": False})
        static.append("".join(f"{line}\n" for line in typed))
        text = "".join(f"{line}\n" for line in held_out)
        bits = [-session.score([text], unit="bits").best.logprob for session in (static, adapted)]
    size = len(text.encode())
    print(f"\nlines held out: static {bits[0] / size:.3f}, adapted {bits[1] / size:.3f} bits per byte\n{out}")

    assert bits[1] < bits[0]
