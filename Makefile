# make train  -- install and train Pong with settings fitted to this machine; PRESET=quick is a minute's demonstration,
#                ARGS=--env=BreakoutNoFrameskip-v4 another game: any flags
# make test   -- install what tests need and run every check
# make quick  -- lint, types and the tests that are not marked slow: under a minute on two cores
# make coverage -- run every test and list the files whose lines they miss most
# make docs   -- build the documentation site into site/: all pages of docs/, and API pages from the docstrings
PYTHON ?= python3
VENV ?= .venv
ARGS ?=

# The preset of the game that ARGS names, if it has one; none if ARGS says otherwise what is trained.
PRESET_OF_ := pong_fast
PRESET_OF_PongNoFrameskip-v4 := pong_fast
PRESET_OF_Catch-v0 := quick
PRESET_OF_CartPole-v1 := cartpole
PRESET_OF_LunarLander-v3 := lunar_lander
PRESET_OF_LunarLanderContinuous-v3 := lunar_lander_continuous
PRESET_OF_MiniGrid-MemoryS9-v0 := minigrid_memory
PRESET_OF_Pendulum-v1 := pendulum
GAME := $(patsubst --env=%,%,$(lastword $(filter --env=%,$(subst --env ,--env=,$(ARGS)))))
CHOOSING := --agent% --preset% --env_id% --env-id% --flagfile% --op_mode% --op-mode% --resume --resume=%
PRESET ?= $(if $(filter $(CHOOSING),$(ARGS)),,$(PRESET_OF_$(GAME)))

BIN := $(VENV)/bin
LIBRARY := wrappers replay agents serve workers learner springbok
PACKAGES := $(LIBRARY) tools benchmarks clients/python/springbok_client

# Bytecode is kept: the tests start many processes, and each would compile the program again.
PYTEST := env --unset=PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest --numprocesses=auto --maxprocesses=8 --dist=worksteal

.PHONY: train test quick lint types unit fast coverage docs format clean

train: $(VENV)/.installed
	$(BIN)/python main.py $(PRESET:%=--preset=%) $(ARGS)

test: lint
	$(MAKE) --no-print-directory --jobs=2 types unit

quick: lint types fast

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy main.py option_flags.py setting.py checked_files.py setup.py docs/site_pages.py $(PACKAGES)

unit: $(VENV)/.installed-dev
	$(PYTEST) $(ARGS)

fast: $(VENV)/.installed-dev
	$(PYTEST) -m 'not slow' $(ARGS)

coverage: $(VENV)/.installed-dev
	$(PYTEST) $(LIBRARY:%=--cov=%) --cov-report=term $(ARGS)

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.installed: requirements.txt
	$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info[:2] <= (3, 13) else f"wanted Python 3.11 to 3.13, got {sys.version.split()[0]}; name another with make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -r requirements.txt
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed $(wildcard requirements-*.txt)
	$(BIN)/python -m pip install --quiet -r requirements-dev.txt
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage site
