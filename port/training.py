import re
def sub(p,*pairs):
    s=open(p).read()
    for a,b in pairs:
        if a not in s: print('MISSING',p,a[:80]); continue
        s=s.replace(a,b)
    open(p,'w').write(s)
T='training/rlstm_training/'; M='model/rlstm_model/'
s=open(M+'torch_backend/bases.py').read()
s=s.replace("@@@\n","# The longest side whose sum is kept whole, in double precision: 128 MiB.\nEXACT_SIDE = 4096\n\n# A sketch has twice as many random directions as axes, and these.\n_OVERSAMPLING = 8\n\n\n")
s=s.replace("from dataclasses import dataclass\n","") if "@dataclass" not in s else s
open(M+'torch_backend/bases.py','w').write(s)
# evaluation.py
sub(T+'evaluation/evaluation.py',
("from rlstm_model.adaptation.batch_items import ObservedChunk\nfrom rlstm_model.adaptation.batch_step import run_batch\nfrom rlstm_model.adaptation.evaluator import DynamicEvaluator\n","from rlstm_model.adaptation.backend import Backend, NativeBackend\nfrom rlstm_model.adaptation.batch import ObservedChunk, run_batch\nfrom rlstm_model.adaptation.calibration import Calibration\nfrom rlstm_model.adaptation.evaluator import DynamicEvaluator, reader_of\n"),
("from rlstm_model.scoring import score\n",""),("from rlstm_model.network.state import State\n","from rlstm_model.torch_backend.backend import TorchBackend\nfrom rlstm_model.torch_backend.fast_weights import slow_norm\n"),
('''class StaticReading:''','''def backend_of(
    model: LanguageModel, calibration: Calibration | None = None, *, temperature: float = 1.0
) -> Backend:
    """The native core where that can compute it, else torch where the model is.

    The core is on a CPU, in float32, and does not learn in a mixture of softmaxes.
    """
    weight = model.embedding.input
    plain = type(model) is LanguageModel and weight.device.type == "cpu" and weight.dtype == torch.float32
    if plain and (calibration is None or model.config.softmax_components == 1):
        return NativeBackend(model.parameter_arrays, calibration, temperature=temperature)
    return TorchBackend(model, calibration, temperature=temperature)


def evaluator_of(
    model: LanguageModel, calibration: Calibration, *, bos_id: int, temperature: float = 1.0
) -> DynamicEvaluator:
    """Dynamic evaluation that gives log-probabilities alone."""
    backend = backend_of(model, calibration, temperature=temperature)
    return DynamicEvaluator(backend, calibration, slow_norm(model), bos_id, logprobs_only=True)


class StaticReading:'''),
('''        self._model = model
        self._temperature = temperature
        self._state: State | None = None
        self._last = bos_id
''','''        self._reader = reader_of(backend_of(model, temperature=temperature), bos_id, logprobs_only=True)
        self._cursor = self._reader.cursor
'''),
('''            scores, self._state = score(
                self._model,
                ids,
                state=self._state,
                last=self._last,
                temperature=self._temperature,
                logprobs_only=True,
            )
            self._last = ids[-1]
''','''            scores, self._cursor = self._reader.score(self._cursor, ids)
'''),
('''    advance: Advance = no_advance,
    thread_pool: ThreadPool | None = None,
) -> list[Evaluation]:''','''    advance: Advance = no_advance,
) -> list[Evaluation]:'''),
('''    A ``thread_pool`` does the batches side by side, which changes no figure. Raises NonFiniteState where a
    stream's state cannot be used.
''','''    Raises NonFiniteState where a stream's state cannot be used.
'''),
("evaluator.config.segment]","evaluator.segment]"),("run_batch(parts, thread_pool)","run_batch(parts)"),
("-float(observed.static_logprobs.double().sum())","-float(observed.static_logprobs.sum(dtype=np.float64))"))
# measurements
s=open(T+'evaluation/measurements.py').read()
s=re.sub(r"from rlstm_model\.torch_backend\.bases import .*\n|from rlstm_model\.adaptation\.bases import .*\n","from rlstm_model.torch_backend.bases import GradientAxes, GradientSquares, collect\n",s)
s=re.sub(r"from rlstm_model\.adaptation\.calibration import \(.*?\)\n|from rlstm_model\.adaptation\.calibration import .*\n","from rlstm_model.adaptation.calibration import Calibration, CalibrationSet, GradientStatistics\nfrom rlstm_model.adaptation.calibration_file import rounded\n",s,count=1,flags=re.S) if "calibration import (" in s else re.sub(r"from rlstm_model\.adaptation\.calibration import .*\n","from rlstm_model.adaptation.calibration import Calibration, CalibrationSet, GradientStatistics\nfrom rlstm_model.adaptation.calibration_file import rounded\n",s,count=1)
s=s.replace("from rlstm_model.network.language_model import LanguageModel\n","from rlstm_model.native.packed import Axes\nfrom rlstm_model.network.language_model import LanguageModel\nfrom rlstm_model.parameters import shapes\nfrom rlstm_model.config import ModelConfig\n",1)
s=s.replace("import torch\n","from torch import Tensor\n",1)
if "measure_rms" in s and "full import measure_rms" not in s:
    s=s.replace("from rlstm_model.torch_backend.bases import","from rlstm_model.torch_backend.full import measure_rms\nfrom rlstm_model.torch_backend.bases import",1)
a=s.index("def cores_of("); b=s.index("def most_fast_weights(")
s=s[:a]+'''def cores_of(config: ModelConfig, statistics: Statistics, known: GradientStatistics | None = None) -> Cores:
    """Those of statistics that are ``known``, or else as ``statistics`` will be taken.

    Raises ValueError when the known ones have no axes.
    """
    if known is not None:
        if not known.axes:
            raise ValueError("the statistics that are stored have no axes")
        return {name: known.cores[name].shape if name in known.axes else part.shape for name, part in known.rms.items()}
    cores = {}
    for name, shape in shapes(config).items():
        wide = name.startswith("embedding.") and statistics.rank > 0
        most = statistics.embedding_rank if wide else statistics.rank
        cores[name] = shape if name.endswith("bias") else _leading(shape, most)
    return cores


'''+s[b:]
s=s.replace("return self.of(setting.segment).calibration(self.model, self.config(setting, form))","return self.of(setting.segment).calibration(self.config(setting, form))")
s=s.replace("cores_of(self.model, self._statistics, self._known)","cores_of(self.model.config, self._statistics, self._known)")
s=s.replace("return sum(weight.numel() for weight in self.model.parameters())","return self.model.config.num_parameters")
s=s.replace("(rounded(statistics, self.model), count)","(rounded(statistics), count)")
a=s.index("        if wanted.rank == 0:"); b=s.index("    def _collect(")
s=s[:a]+'''        if wanted.rank == 0:
            rms, count = measure_rms(
                self.model, texts, segment=segment, reduction="mean", bos_id=self.bos_id
            )
            return GradientStatistics(rms=_arrays(rms), axes={}, cores={}), count
        axes = GradientAxes(self.model, wanted.rank, embedding_rank=wanted.embedding_rank)
        full = GradientSquares(self.model)
        self._collect(texts, segment, axes, full)
        bases = axes.bases()
        cores = GradientSquares(self.model, bases)
        # Other text than the axes were fitted to: along the axes of a text its own gradients look too large.
        others = read_heads(self._sources, wanted.heads, 2 * wanted.segments * segment)
        count = self._collect([text[len(text) // 2 :] for text in others], segment, cores)
        between = _arrays(cores.rms())
        return GradientStatistics(
            rms=_arrays(full.rms()),
            axes={name: Axes(*(side.cpu().numpy() for side in basis)) for name, basis in bases.items()},
            cores={name: between[name] for name in bases},
        ), count

'''+s[b:]
s+='''

def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, NDArray[np.float32]]:
    return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
'''
s=s.replace("import numpy as np\n","import numpy as np\nfrom numpy.typing import NDArray\n",1)
open(T+'evaluation/measurements.py','w').write(s)
# procedure
sub(T+'evaluation/procedure.py',
('''        evaluator = DynamicEvaluator(
            self.model,
            self.calibration,
            bos_id=self.bos_id,
            temperature=self.temperature,
            logprobs_only=True,
        )
''','''        evaluator = evaluator_of(
            self.model, self.calibration, bos_id=self.bos_id, temperature=self.temperature
        )
'''),("    StaticReading,\n    no_advance,\n","    StaticReading,\n    evaluator_of,\n    no_advance,\n"))
s=open(T+'evaluation/procedure.py').read()
s=s.replace("from rlstm_model.adaptation.evaluator import DynamicEvaluator, ExpertConfig\n","from rlstm_model.adaptation.state import ExpertConfig\n").replace("from rlstm_model.adaptation.evaluator import DynamicEvaluator\n","")
open(T+'evaluation/procedure.py','w').write(s)
# search
sub(T+'evaluation/search.py',("from rlstm_model.adaptation.thread_pool import ThreadPool\n",""),("from rlstm_model.adaptation.evaluator import DynamicEvaluator\n",""),
('''    advance: Advance = no_advance,
    thread_pool: ThreadPool | None = None,
) -> Measure:''','''    advance: Advance = no_advance,
) -> Measure:'''),('''passages and rates are rows of one batch, of which each thread of a ``thread_pool`` does a part.''','''passages and rates are rows of one batch.'''),
('''        evaluator = DynamicEvaluator(
            measurements.model,
            measurements.under(replace(settings[0], rate=1.0), form),
            bos_id=measurements.bos_id,
            temperature=temperature,
            logprobs_only=True,
        )
''','''        evaluator = evaluator_of(
            measurements.model,
            measurements.under(replace(settings[0], rate=1.0), form),
            bos_id=measurements.bos_id,
            temperature=temperature,
        )
'''),("read_together(evaluator, streams, advance, thread_pool)","read_together(evaluator, streams, advance)"),
("import Advance, Stream, no_advance, read_together","import Advance, Stream, evaluator_of, no_advance, read_together"))
# monte carlo
sub(T+'evaluation/monte_carlo.py',("from rlstm_model.scoring import score_features\n",""),("from rlstm_model.adaptation.evaluator import DynamicEvaluator\n",""),
('''    evaluator = DynamicEvaluator(
        dropping, calibration, bos_id=bos_id, temperature=temperature, logprobs_only=True
    )
''','''    evaluator = evaluator_of(dropping, calibration, bos_id=bos_id, temperature=temperature)
'''),("torch.logaddexp(total_N, torch.cat(columns).double())","torch.logaddexp(total_N, torch.from_numpy(np.concatenate(columns)).double())"),
('''            scores = score_features(
                model,
                features_TBH.flatten(0, 1),
                targets_T.repeat_interleave(rows),
                temperature=text.temperature,
                logprobs_only=True,
            )
            log_probs_TB = scores.logprobs.double().view(-1, rows)
''','''            log_probs_TB = _log_probs(model, features_TBH, targets_T, text.temperature)
'''),('''def _samples_of_steps(''','''def _log_probs(
    model: LanguageModel, features_TBH: Tensor, targets_T: Tensor, temperature: float
) -> Tensor:
    """Log-probabilities of targets in every row, ``[T, B]`` in float64, some steps at once."""
    steps = max(1, _LOGITS_AT_ONCE // (model.config.vocab_size * features_TBH.shape[1]))
    parts = []
    for some_TBH, some_T in zip(features_TBH.split(steps), targets_T.split(steps), strict=True):
        log_probs_TBV = torch.log_softmax(model.logits(some_TBH, temperature), -1)
        index_TB1 = some_T[:, None, None].expand(-1, log_probs_TBV.shape[1], 1)
        parts.append(log_probs_TBV.gather(2, index_TB1)[..., 0].double().clamp(LOGPROB_FLOOR, 0.0).cpu())
    return torch.cat(parts)


def _samples_of_steps('''),("import torch\nfrom torch import Tensor\n","import numpy as np\nimport torch\nfrom torch import Tensor\n"),("from rlstm_training.evaluation.evaluation import Advance, no_advance","from rlstm_model.scores import LOGPROB_FLOOR\nfrom rlstm_training.evaluation.evaluation import Advance, evaluator_of, no_advance"))
# console
s=open(T+'commands/console.py').read()
s=s.replace("from rlstm_model.adaptation.thread_pool import ThreadPool, single_threaded_products\n","from rlstm_model import native\n")
a=s.index("class Compute(NamedTuple):"); b=s.index("def recipe_named(")
s=s[:a]+s[b:]
s=s.replace("    if threads is not None:\n        torch.set_num_threads(threads)\n","    if threads is not None:\n        torch.set_num_threads(threads)\n        native.set_threads(threads)\n")
open(T+'commands/console.py','w').write(s)
# calibrate
s=open(T+'commands/calibrate.py').read()
s=s.replace("from rlstm_model.adaptation.thread_pool import ThreadPool\n","")
a=s.index("    with prepare_compute(device, threads) as compute:\n"); b=s.index("    keep_choices(checkpoint, choices")
body=s[a:b].split("\n",1)[1]
body="\n".join(l[4:] if l.startswith("    ") else l for l in body.split("\n"))
body=body.replace("checkpoint = load(model, compute.device)","place, checkpoint = prepare_device(device, threads), load(model)").replace("            thread_pool=compute.thread_pool,\n","").replace("        thread_pool=compute.thread_pool,\n","").replace("measurements_of(checkpoint, trained, statistics, known)","measurements_of(checkpoint, place, trained, statistics, known)")
s=s[:a]+body+s[b:]
s=s.replace("prepare_compute","prepare_device").replace("cores_of(checkpoint.model, statistics","cores_of(checkpoint.parameters.config, statistics")
s=re.sub(r"    thread_pool: ThreadPool \| None,\n","",s); s=s.replace(", thread_pool=thread_pool","")
open(T+'commands/calibrate.py','w').write(s)
# choosing
s=open(T+'commands/choosing.py').read()
s=s.replace("from rlstm_model.adaptation.thread_pool import ThreadPool\n","")
s=s.replace("    thread_pool: ThreadPool | None = None,\n","").replace("    \"\"\"Search the grid; a ``thread_pool`` makes that faster and nothing else.\n\n    Raises","    \"\"\"Search the grid.\n\n    Raises").replace("            thread_pool=thread_pool,\n","")
s=s.replace('''    calibrated = CalibrationSet(
        model=checkpoint.model, statistics=statistics, choices=known.choices if known else rules
    )
''','''    calibrated = CalibrationSet(statistics=statistics, choices=known.choices if known else rules)
''').replace("return load_calibration(file, checkpoint.model)","return load_calibration(file, checkpoint.parameters.config)")
s=s.replace('''def measurements_of(
    checkpoint: Checkpoint, recipe: Recipe, statistics: Statistics, known: CalibrationSet | None = None
) -> Measurements:''','''def measurements_of(
    checkpoint: Checkpoint,
    device: torch.device,
    recipe: Recipe,
    statistics: Statistics,
    known: CalibrationSet | None = None,
) -> Measurements:''').replace('''    return Measurements(
        checkpoint.model, texts.train,''','''    model = LanguageModel.of(checkpoint.parameters).to(device)
    return Measurements(
        model, texts.train,''')
s=s.replace("import typer\n","import torch\nimport typer\n",1).replace("from rlstm_model.checkpoint import","from rlstm_model.network.language_model import LanguageModel\nfrom rlstm_model.checkpoint import",1)
s=re.sub(r"from rlstm_model\.adaptation\.calibration import \(\n(.*?)\)\n",lambda m: "from rlstm_model.adaptation.calibration import (\n"+m.group(1).replace("    load_calibration,\n","").replace("    save_calibration,\n","").replace("    CalibrationError,\n","")+")\nfrom rlstm_model.adaptation.calibration_file import load_calibration, save_calibration\n",s,flags=re.S)
open(T+'commands/choosing.py','w').write(s)
# evaluate
sub(T+'commands/evaluate.py',("    checkpoint = load(model, prepare_device(device, threads))\n","    place, checkpoint = prepare_device(device, threads), load(model)\n    network = LanguageModel.of(checkpoint.parameters).to(place)\n"),
("    origin = _Origin(checkpoint, recipe,","    origin = _Origin(checkpoint, network, recipe,"),("measurements_of(checkpoint, origin.recipe(), statistics)","measurements_of(checkpoint, place, origin.recipe(), statistics)"),("            model=checkpoint.model,\n","            model=network,\n"),
("    checkpoint: Checkpoint\n    recipe_name:","    checkpoint: Checkpoint\n    model: LanguageModel\n    recipe_name:"),("        model, bos_id = self.checkpoint.model, self.checkpoint.vocab.bos_id\n","        model, bos_id = self.model, self.checkpoint.vocab.bos_id\n"),
("from rlstm_model.checkpoint import","from rlstm_model.network.language_model import LanguageModel\nfrom rlstm_model.checkpoint import"))
sub(T+'cards.py',("from rlstm_model.checkpoint import CARD, Checkpoint, CheckpointError, save","from rlstm_model.checkpoint import CARD, Checkpoint, CheckpointError, StoredDtype, save"),("vocab: Vocab, *, dtype: torch.dtype = torch.float32\n","vocab: Vocab, *, dtype: StoredDtype = \"F32\"\n"),("    save(folder, model, vocab, dtype=dtype, card=card)","    save(folder, model.parameter_arrays, vocab, dtype=dtype, card=card)"),("import torch\n\n",""))
sub(T+'trainer.py',("    start = load(recipe.start_from).model\n","    start = LanguageModel.of(load(recipe.start_from).parameters)\n"))
sub(T+'commands/train.py',("dtype=torch.float16 if half else torch.float32","dtype=\"F16\" if half else \"F32\""),("model=start.model.config,","model=start.parameters.config,"))
# native threads
sub(M+'native/__init__.py',('''@cache
def pool(threads: int | None = None) -> Pool:
    """The pool of so many threads that this process shares; None is RLSTM_THREADS, or one for each core."""
    if threads is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return pool(int(os.environ.get("RLSTM_THREADS", 0)) or cores)
    return Pool(threads)
''','''_threads: list[int] = []


def set_threads(threads: int) -> None:
    """How many threads :func:`pool` has from now on where nothing else is said."""
    _threads[:] = [threads]


def pool(threads: int | None = None) -> Pool:
    """The pool of so many threads that this process shares.

    None is what :func:`set_threads` said, or RLSTM_THREADS, or one for each core.
    """
    if threads is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = next(iter(_threads), 0) or int(os.environ.get("RLSTM_THREADS", 0)) or cores
    return _pool(threads)


@cache
def _pool(threads: int) -> Pool:
    return Pool(threads)
'''),('    "pool",\n','    "pool",\n    "set_threads",\n'))
