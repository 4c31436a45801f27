# Every target sets up what it needs; `make help` lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PY := .venv/bin/python
PYTEST := .venv/bin/pytest
# Compiled modules are kept, whatever the machine says: else each of hundreds of processes, and each worker of pytest with
# its rewritten assertions, compiles all of them anew.
unexport PYTHONDONTWRITEBYTECODE
SOURCES := crds operator router sim e2e tests docs

.PHONY: help
help: ## List the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: install
install: ## Set up uv and the virtual environment (cache: ~/.cache/pdpool)
	@tools/install

.PHONY: demo
demo: install ## The whole product on this machine, or on the cluster of KUBECONFIG: from nothing to a streamed answer
	@$(PY) -m e2e.demo up

.PHONY: demo-down
demo-down: install ## Remove everything that `make demo` made
	@$(PY) -m e2e.demo down

.PHONY: test
test: install ## Everything that CI runs
	@tools/test

.PHONY: lint
lint: install ## ruff, mypy, import layers
	@.venv/bin/ruff check $(SOURCES)
	@.venv/bin/ruff format --check $(SOURCES)
	@.venv/bin/mypy --cache-dir "$${PDPOOL_CACHE:-$$HOME/.cache/pdpool}/mypy"  # by content: a fresh clone need not begin anew
	@.venv/bin/lint-imports

.PHONY: fmt
fmt: install ## Format and mend what can be mended
	@.venv/bin/ruff check --fix $(SOURCES)
	@.venv/bin/ruff format $(SOURCES)

.PHONY: unit
unit: install ## Tests that need no cluster and no engine
	@$(PYTEST) -q -n 2 -m "not api and not cluster and not engine"

.PHONY: test-api
test-api: install ## Tests against a real API server
	@$(PYTEST) -q -n 4 --dist loadgroup -m api

.PHONY: e2e
e2e: install ## Tests on the real cluster, with real engines
	@$(PYTEST) -v -m cluster tests/cluster tests/e2e

.PHONY: e2e-node
e2e-node: install ## Lost nodes (kwok's, built once, 3 min), a silent kubelet, a slow start, a hanging engine (15 min; outside `make test`)
	@$(PYTEST) -v -m node tests/e2e

.PHONY: e2e-helm
e2e-helm: install ## The chart's life by helm 4 alone, under a live pool on the real cluster (outside `make test`, which has helm 3's)
	@$(PYTEST) -v -m helm tests/e2e

.PHONY: test-page
test-page: install ## The router's page in real Chromium (installs it, 120 MB; outside `make test`)
	@$(PYTEST) -v -m browser tests/browser

.PHONY: e2e-argocd
e2e-argocd: install ## Real Argo CD syncs the chart and pools from git (builds it once, 15 min; outside `make test`)
	@$(PYTEST) -v -m argocd tests/argocd

.PHONY: test-engine-real
test-engine-real: install ## The command line, the table of exchanges, the router and its predictions on real vLLM
	@$(PYTEST) -q tests/contract/test_contract_vllm_real.py
	@$(PYTEST) -q --engine=real tests/engine/test_exchanges.py tests/engine/test_router_engines.py
	@$(PYTEST) -q --engine=real tests/engine/test_router_prefixes.py

.PHONY: generate
generate: install ## Write the CRD, the router file's schema, the chart's files and the install manifest from their sources
	@$(PY) -m pdpool_api.crd
	@$(PY) -m pdpool_api.router_config_schema
	@$(PY) -m pdpool_operator.install
	@$(PY) -m e2e.observability
	@$(PY) -m e2e.chart

.PHONY: verify
verify: install ## Fail where a generated file differs from its source
	@$(PY) -m pdpool_api.crd --check
	@$(PY) -m pdpool_api.router_config_schema --check
	@$(PY) -m pdpool_operator.install --check
	@$(PY) -m e2e.observability --check
	@$(PY) -m e2e.chart --check

.PHONY: docs
docs: install ## Build the documentation into dist/docs; a warning is an error
	@.venv/bin/sphinx-build --quiet --fail-on-warning --builder html docs dist/docs
	@echo "dist/docs/index.html"

.PHONY: lock
lock: ## Write uv.lock after a change of dependencies
	@$${PDPOOL_CACHE:-$$HOME/.cache/pdpool}/tools/bin/uv lock

.PHONY: images
images: install ## Build the images of operator and router (no registry, no daemon)
	@$(PY) -m e2e.images build

.PHONY: release
release: install ## Everything that a release is, into dist/release: wheels, chart, images twice, SBOM, licences; publishes nothing
	@$(PY) -m e2e.release

.PHONY: cluster-up
cluster-up: install ## A real one-node Kubernetes on this machine
	@$(PY) -m e2e.cluster up

.PHONY: cluster-down
cluster-down: install ## Remove it without a trace
	@$(PY) -m e2e.cluster down

.PHONY: peers
peers: install ## Install the peers that benchmarks run beside us
	@$(PY) -m e2e.bench.peers

.PHONY: soak-router
soak-router: install ## A million requests with cancels, resets and churn: memory, sockets and counters (REQUESTS=, AT_ONCE=)
	@$(PY) -m e2e.bench.soak --requests $${REQUESTS:-1000000} --at-once $${AT_ONCE:-64}

.PHONY: bench-router
bench-router: install peers ## What the router costs beside its peers (QUICK=1, JSON=file, PLOT=file)
	@[ -z "$${PLOT:-}" ] || PDPOOL_BENCH= tools/install
	@$(PY) -m e2e.bench.router

.PHONY: bench-index
bench-index: install ## What knowing prefixes costs: events, look-ups, memory, choices, a router at rest (QUICK=1, JSON=file)
	@$(PY) -m e2e.bench.index

.PHONY: bench-sim
bench-sim: ## Routing rules on a trace and on generated workloads, simulated (TRACE=file, QUICK=1, JSON=file, PLOT=file)
	@PDPOOL_BENCH= tools/install
	@$(PY) -m pdpool_sim.bench

.PHONY: validate-sim
validate-sim: install ## The simulator's engine beside real vLLM on the CPU, at the same requests (ROUNDS=3, JSON=file)
	@$(PY) -m e2e.bench.engine_model

.PHONY: picture-dashboard
picture-dashboard: install ## The dashboard's panels as docs/img/dashboard.png, from a router between stand-in engines (three minutes)
	@$(PY) -m e2e.observability.picture dist/dashboard.json
	@PDPOOL_BENCH= tools/install
	@$(PY) -m e2e.observability.drawing dist/dashboard.json docs/img/dashboard.png

.PHONY: picture-demo
picture-demo: demo ## The same of the demo's real engines, as docs/img/demo.png: a busy time in which decode grows and shrinks (five minutes or more)
	@$(PY) -m e2e.observability.demo dist/demo.json
	@PDPOOL_BENCH= tools/install
	@$(PY) -m e2e.observability.drawing dist/demo.json docs/img/demo.png

.PHONY: bench-operator
bench-operator: install ## What 50 and 500 pools cost the operator, and how soon an edit arrives (QUICK=1, JSON=file)
	@$(PY) -m e2e.bench.operator

.PHONY: chaos-operator
chaos-operator: install ## Edits, kills and losses by a seeded story, and what held (MINUTES=30, SEED=, GROUND=node|control-plane)
	@$(PY) -m e2e.chaos

.PHONY: bench-scaling
bench-scaling: ## The operator's tick beside rivals' scaling rules, on simulated days (TRACE=file, QUICK=1, HOURS=24, JSON=file, PLOT=file)
	@PDPOOL_BENCH= tools/install
	@$(PY) -m pdpool_sim.scaling.bench
