"""lm-evaluation-harness as it is installed, against `rlstm serve`: its numbers are those of a plain sum."""

import json
import math
import re
import shlex
import subprocess
import sys

import pytest

pytest.importorskip("lm_eval", reason="install mogrifier-rlstm[harness] for the evaluation harness")

pytestmark = [pytest.mark.harness, pytest.mark.timeout(600)]

PAIRS = [
    ["the quick brown fox", " jumps over the lazy dog"],
    ["It was the best of times,", " it was the worst of times"],
    ["double  spaces", " and é🙂 too"],
    ["", "no context at all"],
    ["a", "b"],
]
TEXT = "so it was, and so it was again, double  spaces and é🙂. " * 6
MODELS = ["tiny", "tiny:adapt"]
TOLERANCE = 1e-4
"""Nats a token."""

TASKS = {
    "pairs": """
task: pairs
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{context}}"
doc_to_target: "{{continuation}}"
target_delimiter: ""
metric_list: [{metric: acc}, {metric: perplexity}]
""",
    "rolling": """
task: rolling
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: bits_per_byte}]
""",
    "writing": """
task: writing
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: generate_until
doc_to_text: "{{context}}"
doc_to_target: "{{continuation}}"
generation_kwargs: {until: ["zzz", "\\n"], max_gen_toks: 12, temperature: 0}
metric_list: [{metric: bypass}]
""",
}


def ids_of(context, continuation):
    """What the harness sends: bos in place of an empty context."""
    return [*(context.encode() or b"\n"), *continuation.encode()]


def expected(brute_force, model, context, continuation):
    """The sum over the continuation."""
    return math.fsum(brute_force[model](ids_of(context, continuation))[-len(continuation.encode()) :])


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """Three tasks of our own, on files."""
    folder = tmp_path_factory.mktemp("tasks")
    named = [{"context": context, "continuation": continuation} for context, continuation in PAIRS]
    rows = {"pairs": named, "rolling": [{"text": TEXT}, {"text": "short"}], "writing": named[:2]}
    for name, task in TASKS.items():
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows[name]))
        (folder / f"{name}.yaml").write_text(task % data)
    return folder


@pytest.mark.parametrize("model", MODELS)
def test_the_command_gives_the_numbers_of_a_plain_sum(
    rlstm, server, offline, page, tasks, tmp_path, brute_force, model
):
    """As the page has it, unmodified: likelihood, rolling and generation, each sample."""
    (line,) = re.findall(r"^    lm_eval (.+)$", page(server.url), re.MULTILINE)
    line = line.replace("model=tiny:adapt", f"model={model}")
    line = line.replace("TASKS", "pairs,rolling,writing").replace("FOLDER", str(tasks))
    command = ["-m", "lm_eval", *shlex.split(line), "--output_path", str(tmp_path), "--log_samples"]
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        env=rlstm.environment | offline,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]

    def samples(name):
        (file,) = tmp_path.rglob(f"samples_{name}_*.jsonl")
        return sorted(map(json.loads, file.read_text().splitlines()), key=lambda row: row["doc_id"])

    for row, (context, continuation) in zip(samples("pairs"), PAIRS, strict=True):
        found = float(row["filtered_resps"][0][0])
        tokens = len(continuation.encode())
        assert abs(found - expected(brute_force, model, context, continuation)) <= TOLERANCE * tokens
    for row, text in zip(samples("rolling"), (TEXT, "short"), strict=True):
        found = float(row["filtered_resps"][0])
        assert abs(found - expected(brute_force, model, "", text)) <= TOLERANCE * len(text.encode())
    assert all(len(row["filtered_resps"][0].encode()) >= 1 for row in samples("writing"))


def test_every_way_of_asking_gives_the_same_numbers(drive, brute_force):
    """Batches, concurrency, text in place of ids; bos in place of nothing, and nothing to score."""
    ways = [{}, {"batch_size": 2}, {"num_concurrent": 2}, {"num_concurrent": 3, "batch_size": 2}]
    ways.append({"tokenized_requests": False})
    calls = [
        {"model": {"model": model} | way, "kind": "loglikelihood", "rows": PAIRS}
        for model in MODELS
        for way in ways
    ]
    found = drive(*calls, {"model": {"model": "tiny"}, "kind": "loglikelihood", "rows": [["a", ""]]})
    assert found.pop() == [[0, True]]
    for call, answers in zip(calls, found, strict=True):
        for (logprob, _), (context, continuation) in zip(answers, PAIRS, strict=True):
            right = expected(brute_force, call["model"]["model"], context, continuation)
            assert abs(logprob - right) <= TOLERANCE * len(continuation.encode()), call["model"]


def test_windows_are_scored_as_windows_and_a_whole_text_as_one(drive, brute_force):
    """`max_length` 8 and a million: each is the plain sum over the windows that the harness makes."""
    windows = [{"max_length": 8}, {"max_length": 1_000_000}, {"max_length": 8, "num_concurrent": 2}]
    calls = [
        {"model": {"model": model} | way, "kind": "loglikelihood_rolling", "rows": [[TEXT]]}
        for model in MODELS
        for way in windows
    ]
    ids = [10, *TEXT.encode()]
    for call, (found,) in zip(calls, drive(*calls), strict=True):
        scores = brute_force[call["model"]["model"]]
        whole = call["model"]["max_length"] > len(ids)
        right = math.fsum(scores(ids)) if whole else _windowed(scores, ids)
        assert abs(found - right) <= TOLERANCE * len(ids), call["model"]


def _windowed(scores, ids):
    """Sum over windows of six tokens, each after one of context."""
    tokens, total, size = ids[1:], 0.0, 6
    for start in range(0, len(tokens), size):
        piece = tokens[start : start + size]
        context = ids[start : start + 1] if start else ids[:1]
        if len(piece) < size and start:  # the last window is filled up with what came before it
            context = ids[1 + start + len(piece) - size - 1 :][: size + 1 - len(piece)]
        total += math.fsum(scores([*context, *piece])[-len(piece) :])
    return total


def test_what_was_written_greedily_is_greedy(drive, server):
    """A continuation that generation gave is found to be the best one, and another is not.

    Of the model as loaded: one that adapts counts what it scores, and nothing that it generates.
    """
    context, calls = [*b"the quick"], []
    body = {"prompt": context, "max_tokens": 5, "temperature": 0, "return_token_ids": True}
    with server.client() as client:
        answer = client.post("/v1/completions", json=body | {"model": "tiny"}).json()
        ids = answer["choices"][0]["token_ids"]
        rows = [[context, ids], [context, [*ids[:-1], (ids[-1] + 1) % 256]]]
        calls.append({"model": {"model": "tiny"}, "kind": "_loglikelihood_tokens", "rows": rows})
    for answers in drive(*calls):
        assert [greedy for _, greedy in answers] == [True, False]


def test_generation_stops_where_it_is_told(drive):
    """Alone with the end of a line as a stop, and concurrently without: the same request otherwise."""
    rows = [["the quick", {"until": ["zzz"], "max_gen_toks": 30, "temperature": 0}]]
    calls = [
        {"model": {"model": "tiny", **way}, "kind": "generate_until", "rows": rows}
        for way in ({}, {"num_concurrent": 2})
    ]
    (alone,), (beside,) = drive(*calls)
    assert "\n" not in alone
    assert beside.split("\n")[0] == alone
