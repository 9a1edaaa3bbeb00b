"""`rlstm evaluate` beyond plain numbers: searches, samples, and what it leaves beside a checkpoint."""

import json

import pytest

from rlstm_model.adaptation.calibration_file import load_calibration
from rlstm_model.checkpoint import EVALUATION, load
from rlstm_model.network.dropout import DropoutRates
from rlstm_model.network.language_model import LanguageModel
from rlstm_training.corpora.reading import load_corpus, load_stream
from rlstm_training.corpora.texts import passage
from rlstm_training.evaluation.evaluation import Stream, evaluator_of, read_adapting, static_loss
from rlstm_training.evaluation.monte_carlo import MonteCarlo
from rlstm_training.evaluation.procedure import Procedure

QUICK = [
    *("--search-tokens", 60, "--heads", 2, "--segments", 2),
    *("--segment", 10, "--decay", 0, "--epsilon", 0.1),
]
RATES = ["--rate", 1e-3, "--rate", 1e-2]


@pytest.fixture
def evaluated(rlstm, trained):
    """Evaluates the trained model on the corpus ``one`` and reads the JSON that comes of it."""

    def call(*words):
        done = rlstm("evaluate", trained, "--corpus", "one", *words, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    return call


def _test_passage(checkpoint):
    return passage(checkpoint.vocab, load_corpus("one", "test"), "one test")


def test_a_corpus_costs_its_static_loss(evaluated, trained):
    """What is printed for a split is the library's number; each begins with the weights as loaded."""
    told = evaluated("--split", "valid", "--split", "test")["texts"]
    assert [text["text"] for text in told] == ["one valid", "one test"]
    expected = static_loss(
        LanguageModel.of(load(trained).parameters), _test_passage(load(trained)), bos_id=10
    )
    assert (told[1]["static"], told[1]["adapted"]) == (expected.to_json()["static"], None)


def test_a_stream_is_one_session(rlstm, calibrated):
    """In its prefix form, dynamically, it equals one session over the joined segments."""
    model, _ = calibrated
    done = rlstm("evaluate", model, "--stream", "turns", "--prefix", 30, "--dynamic", "--json")
    (told,) = json.loads(done.stdout)["texts"]
    checkpoint, segments = load(model), load_stream("turns", prefix=30)
    joined = passage(checkpoint.vocab, b"".join(raw for _, raw in segments), "joined")
    calibration = load_calibration(checkpoint.adaptation_file, checkpoint.parameters.config).choose()
    evaluator = evaluator_of(
        LanguageModel.of(checkpoint.parameters), calibration, bos_id=checkpoint.vocab.bos_id
    )
    ((expected,),) = read_adapting(evaluator, [Stream([joined], evaluator.start())])
    assert told["adapted"]["nats"] == pytest.approx(expected.adapted_nats, abs=1e-5 * told["tokens"])
    assert told["static"]["nats"] == pytest.approx(expected.static_nats, abs=1e-5 * told["tokens"])
    assert [segment["text"] for segment in told["segments"]] == [label for label, _ in segments]
    assert sum(segment["bytes"] for segment in told["segments"]) == told["bytes"] == 90


def test_tables_for_people(rlstm, trained, own_folder, tmp_path):
    """A row each for files and standard input; searches, and results in the published measure."""
    (tmp_path / "a.txt").write_text("the sea\n")
    words = [
        "--temperature",
        "search",
        "--search",
        *QUICK,
        *RATES,
        "--recipe",
        "tiny",
        "--trained-on",
        own_folder,
    ]
    done = rlstm("evaluate", trained, tmp_path / "a.txt", "-", *words, stdin="was calm and cold\n")
    assert done.exit_code == 0, done.output
    assert "nats a token" in done.stdout
    assert "own valid" in done.stdout
    assert "static, adapted and gain in bits per byte" in done.stdout
    tokens = dict(line.split()[:2] for line in done.stdout.splitlines() if line.strip())
    assert (tokens[str(tmp_path / "a.txt")], tokens["-"]) == ("8", "18")


def test_a_temperature_is_chosen_on_validation_and_used_on_test(evaluated, trained):
    """The least loss of those tried on the validation text; the number is the library's at that value."""
    told = evaluated("--temperature", "search")
    losses = {pair["temperature"]: pair["nats_per_token"] for pair in told["temperatures"]}
    chosen = min(losses, key=losses.get)
    checkpoint = load(trained)
    valid = passage(checkpoint.vocab, load_corpus("one", "valid"), "valid")
    on_valid = Procedure(model=LanguageModel.of(checkpoint.parameters), bos_id=10, temperature=chosen).read(
        [valid]
    )[0]
    assert losses[chosen] == pytest.approx(on_valid.static_nats / len(valid.ids), abs=1e-5)
    (text,) = told["texts"]
    assert text["settings"]["temperature"] == chosen
    procedure = Procedure(model=LanguageModel.of(checkpoint.parameters), bos_id=10, temperature=chosen)
    assert text["static"] == procedure.read([_test_passage(checkpoint)])[0].to_json()["static"]


def test_a_rule_is_searched_on_validation_and_read_once_on_test(evaluated, trained, own_folder):
    """The best trial's rule gives the test number; nothing is written unless it is to be kept."""
    before = sorted(path.name for path in trained.iterdir())
    told = evaluated("--search", *QUICK, *RATES, "--trained-on", own_folder)
    (text,), search = told["texts"], told["search"]
    assert [trial["rate"] for trial in search["trials"]] == [1e-3, 1e-2]
    assert search["chosen"]["mean"] == min(trial["mean"] for trial in search["trials"])
    assert search["chosen"]["regret"] == 0
    assert list(search["static"]) == ["one valid"]
    assert text["settings"]["adaptation"]["rate"] == search["chosen"]["rate"]
    assert text["updates"] == text["tokens"] // 10
    assert sorted(path.name for path in trained.iterdir()) == before


def test_what_is_evaluated_is_what_was_searched(evaluated, own_folder):
    """With several experts, that is their mixture."""
    words = ["--search", *QUICK, *RATES, "--trained-on", own_folder, "--split", "valid", "--prefix", 60]
    losses = set()
    for experts in (1, 2):
        answer = evaluated(*words, "--experts", experts)
        assert answer["search"]["experts"] == experts
        found = answer["search"]["chosen"]["mean"]
        assert found == pytest.approx(answer["texts"][0]["adapted"]["bits_per_byte"], abs=1e-5)
        losses.add(round(found, 4))
    assert len(losses) == 2


def test_what_a_search_found_can_be_kept(evaluated, trained, own_folder):
    """--keep makes it the checkpoint's calibration: --dynamic then gives the same number."""
    told = evaluated("--search", *QUICK, *RATES, "--trained-on", own_folder, "--keep")
    checkpoint = load(trained)
    stored = load_calibration(checkpoint.adaptation_file, checkpoint.parameters.config).choose()
    assert stored.config.rate == told["search"]["chosen"]["rate"]
    assert "## Adaptation: full, " in checkpoint.card
    again = evaluated("--dynamic")
    assert again["texts"][0]["adapted"] == told["texts"][0]["adapted"]
    assert again["search"] is None


def test_a_search_that_finds_nothing_good_says_so(rlstm, trained, own_folder):
    """Where every setting costs bits, a warning on standard error precedes the result."""
    words = ("--corpus", "one", "--search", *QUICK, "--rate", 50.0, "--trained-on", own_folder)
    done = rlstm("evaluate", trained, *words, "--json")
    assert done.exit_code == 0, done.output
    assert "warning: nothing tried for full is better" in done.stderr


def test_results_are_saved_beside_the_model(rlstm, evaluated, trained):
    """evaluation.json and the card hold each text once under each settings; the model loads as before."""
    for words in ([], ["--temperature", 0.9], []):
        told = evaluated(*words, "--save")
    data = json.loads((trained / EVALUATION).read_text())
    assert data["fingerprint"] == told["fingerprint"] == load(trained).fingerprint
    assert [result["settings"]["temperature"] for result in data["results"]] == [1.0, 0.9]
    assert all(result["published"] == "bits per byte" for result in data["results"])
    card = load(trained).card
    assert card.count("## Evaluation") == 1
    assert card.count("| one test |") == 2
    assert f"{data['results'][0]['static']['bits_per_byte']:.4f}" in card


@pytest.mark.parametrize("mode", ["arithmetic", "geometric"])
def test_monte_carlo_dropout(evaluated, trained, mode):
    """Rates are scaled and named in the result; the number is the library's."""
    options = ["--monte-carlo", 2, "--dropout", "input=.5,output=.25", "--dropout-scale", 0.8, "--seed", 3]
    (text,) = evaluated(*options, *(["--geometric"] if mode == "geometric" else []))["texts"]
    sampling = MonteCarlo(samples=2, rates=DropoutRates(input=0.4, output=0.2), averaging=mode, seed=3)
    checkpoint = load(trained)
    procedure = Procedure(model=LanguageModel.of(checkpoint.parameters), bos_id=10, monte_carlo=sampling)
    assert text["static"] == procedure.read([_test_passage(checkpoint)])[0].to_json()["static"]
    assert text["settings"]["monte_carlo"]["rates"] == {
        "input": 0.4,
        "cell": 0.0,
        "state": 0.0,
        "output": 0.2,
    }
    plain = static_loss(LanguageModel.of(checkpoint.parameters), _test_passage(checkpoint), bos_id=10)
    assert text["static"]["nats"] != pytest.approx(plain.static_nats, abs=1e-3)


def test_wrong_options_are_named(rlstm, trained):
    """Exit code 2 and the option's name."""
    for words, name in [
        (["--temperature", "hot"], "--temperature"),
        (["--temperature", "0"], "temperature"),
        (["--keep"], "--keep"),
        (["--search", "--experts", 3], "--experts"),
        (["--monte-carlo", 2, "--dropout", "inputs=.1"], "--dropout"),
        (["--monte-carlo", 2, "--dropout", "input=1.5"], "--dropout"),
        (["--monte-carlo", 2, "--dropout", "input=.9", "--dropout-scale", 2], "--dropout-scale"),
        (["--temperature", "search", "--recipe", "huge", "--monte-carlo", 2], "huge"),
    ]:
        done = rlstm("evaluate", trained, "--corpus", "one", *words)
        assert done.exit_code == 2, (words, done.output)
        assert name in done.stderr


def test_a_text_that_is_named_twice_is_refused(rlstm, trained, own_folder):
    """A file, a corpus and standard input alike: read once it would be half of what was asked for."""
    file = own_folder / "test.txt"
    for words in ([file, file], ["--corpus", "one", "--corpus", "one"], ["-", "-"]):
        done = rlstm("evaluate", trained, *words, stdin="It was so.")
        assert (done.exit_code, "once" in done.stderr) == (2, True)
