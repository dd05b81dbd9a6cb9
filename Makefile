# Every target but help and clean first sets up .venv, and needs only make and Python with venv.
# Nothing is written outside this checkout but pip's cache, and that only when there is a HOME.

PYTHON ?= python3
ARGS ?=
SCALE ?= 1
TARGETS ?=
INPUTS ?= 100000
SEED ?= 0
SEEDS ?= 200
PHOENIX_VERSION := 20.26.1
MARIONETTE_VERSION := 3.7.1
OPENINFERENCE_VERSION := 3.1.0
OPENINFERENCE_SDK_VERSION := 2.14.0

BIN := .venv/bin
READY := .venv/.ready

# pip's isolated build reads its pins from the environment only: older pips from the first
# variable, newer ones from the second. The path is relative, because pip splits it at spaces.
export PIP_CONSTRAINT := constraints.txt
export PIP_BUILD_CONSTRAINT := constraints.txt

# Tests start hundreds of processes: without compiled modules each would compile all of agentobs again.
unexport PYTHONDONTWRITEBYTECODE

# Without a HOME, pip would look up the user's home directory and write its cache there.
ifeq ($(strip $(HOME)),)
export PIP_NO_CACHE_DIR := 1
endif

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow crash test-browser test-firefox check bench soak fuzz fuzz-coverage simulate mutants docs clean test-phoenix test-agents test-programs \
  test-install compare-openinference

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1 - \2/p' Makefile

demo: $(READY) ## record a session, ask about it, freeze it and replay it
	$(BIN)/agentobs demo

test: $(READY) ## run the tests; make test ARGS='-k journal' passes more to pytest
	$(BIN)/python -m pytest -n auto --dist loadgroup -q $(ARGS)

crash: $(READY) ## run the tests that kill processes, damage files and send bursts at each step, which make test leaves out
	$(BIN)/python -m pytest -m crash -n auto --dist loadgroup -q $(ARGS)

test-slow: $(READY) ## run the tests of whole commands, programs and large stores, which make test leaves out, and those of make crash
	$(BIN)/python -m pytest -m '(slow or crash) and not soak' -n auto --dist loadgroup -q $(ARGS)

test-browser: $(READY) ## run the tests of the dashboards in a real browser, which make test leaves out
	$(BIN)/python -m pytest -m browser -n auto --dist loadgroup -q tests/browser $(ARGS)

test-firefox: $(READY) .venv/firefox/.ready ## visit the main pages in Firefox, which make test leaves out; needs firefox-esr
	PYTHONPATH=.venv/firefox $(BIN)/python -m pytest -m firefox -q tests/firefox $(ARGS)

.venv/firefox/.ready: $(READY)
	env -u PIP_CONSTRAINT -u PIP_BUILD_CONSTRAINT $(BIN)/pip install --quiet --disable-pip-version-check --target .venv/firefox \
	  'marionette_driver==$(MARIONETTE_VERSION)'
	@touch $@

test-node: $(READY) ## run the tests with Node.js, which make test leaves out
	$(BIN)/python -m pytest -m node -q tests/proxy $(ARGS)

check: $(READY) ## format, lint, spelling and types, changing nothing
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/codespell agentobs replay exporters dashboards tests benchmarks docs *.md Makefile
	$(BIN)/mypy

bench: $(READY) ## measure the overhead against the floors and the peers
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python -m benchmarks $(ARGS)

soak: $(READY) ## run the long tests and measure all figures, on two cores for several hours; continues an interrupted run; writes docs/scorecard.md
	$(BIN)/python -m tests.soak --scale $(SCALE) $(ARGS)

fuzz: $(READY) ## test every external format with mutated inputs; make fuzz TARGETS='har wire' INPUTS=1000000 SEED=7
	$(BIN)/python -m tests.fuzzing $(TARGETS) --inputs $(INPUTS) --seed $(SEED) $(ARGS)

fuzz-coverage: $(READY) ## the same, guided by coverage with atheris: make fuzz-coverage TARGETS=har INPUTS=100000
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	$(BIN)/python -m tests.fuzzing.coverage_guided $(TARGETS) --inputs $(INPUTS) $(ARGS)

simulate: $(READY) ## simulate crashes, failing disks and power losses: make simulate SEEDS=1000, or SEED=7 to repeat one
	PYTHONHASHSEED=0 $(BIN)/python -m tests.simulation $(if $(filter command environment,$(origin SEED)),--seed $(SEED),--seeds $(SEEDS)) $(ARGS)

mutants: $(READY) ## change the source in 60 random places and print which changes the tests detect; takes about an hour
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[mutants]'
	$(BIN)/python -m tests.mutants $(ARGS)

test-phoenix: $(READY) .venv/phoenix/.ready ## have Phoenix read our spans; it is 440 MB, in an environment of its own
	PHOENIX=.venv/phoenix/bin/phoenix $(BIN)/python -m pytest -q tests/exporters/test_phoenix.py $(ARGS)

.venv/phoenix/.ready: $(READY)
	"$(PYTHON)" -m venv .venv/phoenix
	env -u PIP_CONSTRAINT -u PIP_BUILD_CONSTRAINT .venv/phoenix/bin/pip install --quiet --disable-pip-version-check 'arize-phoenix==$(PHOENIX_VERSION)'
	@touch $@

compare-openinference: $(READY) .venv/openinference/.ready ## compare our spans with those of OpenInference's instrumentation
	$(BIN)/python -m tests.openinference .venv/openinference/bin/python

.venv/openinference/.ready: $(READY)
	"$(PYTHON)" -m venv .venv/openinference
	env -u PIP_CONSTRAINT -u PIP_BUILD_CONSTRAINT .venv/openinference/bin/pip install --quiet --disable-pip-version-check \
	  'openinference-instrumentation-anthropic==$(OPENINFERENCE_VERSION)' 'anthropic==$(OPENINFERENCE_SDK_VERSION)' opentelemetry-sdk
	@touch $@

test-agents: $(READY) ## record and replay agents of third-party frameworks, each in a separate environment; ARGS names some of them
	$(BIN)/python -m tests.third_party_agents $(ARGS)
	$(if $(ARGS),,$(BIN)/python -m tests.agent_comparison)
	$(if $(ARGS),,$(BIN)/python -m tests.third_party_programs)

test-programs: $(READY) ## record and replay programs such as Claude Code; ARGS names some of them; needs npm, jq and openssl
	$(BIN)/python -m tests.third_party_programs $(ARGS)

test-install: $(READY) ## resolve third-party frameworks alone and with agentobs, which must not lower their versions
	$(BIN)/python -m tests.third_party_agents.installation $(ARGS)

docs: $(READY) ## generate the documents again
	$(BIN)/python -m tests.write_docs

clean: ## remove the environment, caches and builds; recordings in .agentobs stay
	rm -rf .venv build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -type d -name __pycache__ -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "agentobs needs Python 3.11 or newer, and $(PYTHON) is not: name one, as in make PYTHON=python3.12." >&2; exit 1; }
	"$(PYTHON)" -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
