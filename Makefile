# One word, one action. Everything is made in .venv; nothing else on the machine is touched.
PYTHON ?= python3
BIN := .venv/bin
ADD := $(BIN)/pip install --quiet --disable-pip-version-check --editable
INSTALLED := .venv/.installed
export RLSTM_CORPORA ?= ../shared/data
CORE := model/rlstm_model/native/librlstm.$(if $(filter Darwin,$(shell uname)),dylib,so)

.PHONY: all install wheels check format test slow fuzz faults soak gpu harness node page jobs not-unix versions docs stack golden serve demo bench bench-gpu

all: check test

install: $(INSTALLED) $(CORE)

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv .venv
	$(ADD) '.[all,dev]'
	@touch $(INSTALLED)

# An installation builds it too; here it is built again of sources that have changed.
$(CORE): hatch_build.py $(wildcard model/rlstm_model/native/src/*) | $(INSTALLED)
	$(ADD) . --no-deps

# What goes to the package index. Each core is compiled by Zig; only that for this machine has been run.
WHEELS := x86_64-linux-gnu.2.17 aarch64-linux-gnu.2.17 x86_64-macos aarch64-macos x86_64-windows-gnu
wheels: $(INSTALLED)
	for target in $(WHEELS); do RLSTM_TARGET=$$target $(BIN)/pip wheel --quiet --no-deps --wheel-dir dist . || exit; done
	ls -l dist

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python clients/python/unasync.py --check

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# A process for each core, of one thread: the models of the tests are too small to share.
test: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist loadfile

slow: install
	$(BIN)/python -m pytest -m slow --timeout 3600
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m hypothesis --hypothesis-profile long --timeout 3600

# Requests made from the OpenAPI document, of the extra `fuzz`.
fuzz: install
	$(ADD) '.[fuzz]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'fuzz and not faults'

# All of it takes hours; RLSTM_FAULTS=short makes few faults of those kinds that need processes, in minutes.
faults: install
	$(ADD) '.[fuzz]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(if $(filter short,$(RLSTM_FAULTS)),tests/faults tests/mutation) \
	  -m faults --timeout 3600 --capture no

# RLSTM_SOAK_MINUTES says for how long.
soak: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m soak --capture no

gpu: install
	$(BIN)/python -m pytest -m gpu --timeout 300

# The deployment as real processes, by the files that compose mounts. Needs nginx and prometheus.
stack: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m stack --capture no

# The TypeScript client. Needs Node 20 and npm's registry.
node: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m node --timeout 300

# The page, in a browser, by the extra `browser`. Needs chromium, and npm's registry for axe-core.
page: install
	$(ADD) '.[browser]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m page --timeout 300 --capture no

# Others' clients, of the extra `harness` (550 MB), against a server.
harness: install
	$(ADD) '.[harness]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m harness --timeout 600

# The site, into site/; then what its pages tell people to type is typed.
docs: install
	$(ADD) '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m docs --timeout 1800 --capture no

# The jobs of docs/how-to, with the shipped model.
jobs: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m jobs --capture no

# The client, `--local` and the jobs without the modules that only Unix has, as on Windows.
not-unix: install
	OMP_NUM_THREADS=1 PYTHONPATH=tests/not_unix $(BIN)/python -m pytest tests/client tests/end_to_end/test_local.py
	OMP_NUM_THREADS=1 PYTHONPATH=tests/not_unix $(BIN)/python -m pytest -m jobs tests/end_to_end --capture no

# The wheel in fresh environments, beside other versions of what it stands on.
versions: install
	$(ADD) '.[versions]'
	$(BIN)/python -m pytest -m versions --capture no

# What this commit answers and computes, held against what was recorded.
golden: install
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.golden.record .golden
	$(BIN)/python -m tests.golden.compare tests/golden/recorded.json.xz .golden

serve: install
	$(BIN)/rlstm serve

demo: install
	$(BIN)/python clients/python/examples/demo.py $(FILE)

bench: install
	$(BIN)/python -m benchmarks.native
	$(BIN)/python -m benchmarks.peers
	$(BIN)/python -m benchmarks.train
	$(BIN)/python -m benchmarks.adapt
	$(BIN)/python -m benchmarks.store
	$(BIN)/python -m benchmarks.watch
	$(BIN)/python -m benchmarks.rescore

bench-gpu: install
	$(BIN)/python -m benchmarks.rows --device cuda
	$(BIN)/python -m benchmarks.gpu
