# make lab    set up if needed, then open JupyterLab on the first notebook (LAB_ARGS="--no-browser --port=8899")
# make test   set up if needed, then run every test that this machine can run (TEST_ARGS="-m 'not slow'")
# make setup  the virtual environment alone; afterwards .venv/bin/flashnorm-lab exists (PIP_ARGS go to pip)
# make lint   ruff over code and notebooks
# make lock   write requirements.lock again from pyproject.toml (LOCK_ARGS=--upgrade takes the newest of all)
# make clean  remove the virtual environment and what tests and builds left

LAB_ARGS ?=
TEST_ARGS ?=
# Two processes, since every one of them loads torch and a test's kernels have threads of their own. A file's
# tests stay together; the long files come early in the alphabet, and so are not what is waited for at the end.
WORKERS ?= -n auto --maxprocesses 2 --dist loadfile --no-loadscope-reorder
PIP_ARGS ?=
LOCK_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
# A virtual environment holds its own path, so a folder that was moved or copied needs a set-up of its own.
STAMP := $(VENV)/.set-up-in-$(shell pwd | cksum | cut -d' ' -f1)

.PHONY: lab test setup lint lock clean

lab: setup
	@$(BIN)/flashnorm-lab lab $(LAB_ARGS)

test: setup
	$(BIN)/python -m pytest $(WORKERS) $(TEST_ARGS)

setup: $(STAMP)

# Runs again only when the lock or the project file is newer than the last set-up that went through to its end.
$(STAMP): requirements.lock pyproject.toml
	@PYTHON="$(PYTHON)" sh tools/make_venv.sh $(VENV)
	@echo "Installing the pinned packages into $(VENV) (a few minutes the first time) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@rm -f $(VENV)/.set-up-in-*
	@touch $@
	@echo "Set up. 'make lab' opens the notebooks, '$(BIN)/flashnorm-lab doctor' tells what this machine can do."

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check

lock: setup
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv>=0.8"
	@$(BIN)/python tools/lock.py $(LOCK_ARGS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
