# Queen: every task of the project. `make` or `make help` lists them.

SHELL       := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

MODULES  := sql pkg services/broker services/maintainer services/queen services/sweeper services/tests charts/tests
PACKAGES := $(addsuffix /...,$(addprefix ./,$(MODULES)))
BIN      := $(CURDIR)/.bin

# The services that there are binaries of, and all of them in one for trials.
SERVICES := broker maintainer sweeper queen

# Packages whose tests run under the race detector in `make test`. The end-to-end
# suite drives binaries; `make test-race` builds those with the detector too.
# What pkg/store does at once happens in PostgreSQL, which the detector does not see.
RACE_PACKAGES  = $$(go list ./pkg/... ./services/broker/... ./services/maintainer/... ./services/queen/... ./services/sweeper/... | grep -v /pkg/store$$)

# What makes the engine fast and may be switched off without changing an answer.
SWITCHES := QUEEN_HOTLIST=0 QUEEN_ACK_FUSION=0 QUEEN_ACK_REGISTRY=0 QUEEN_DEDUP_CACHE=0 QUEEN_POP_FUSION=0 QUEEN_KV_FLIGHTS=-1

# The part of the end-to-end suite that `make test` repeats with three brokers.
CLUSTER_TESTS := Client|ConsumeLoop|Consumers|ManualAcks|LateAck|FiftyRequests|BehavesLikeTheModel$$|Turmoil

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
COMMIT  ?= $(shell git rev-parse HEAD 2>/dev/null)
LDFLAGS := -X github.com/queenmq/queen/pkg/buildinfo.version=$(VERSION) -X github.com/queenmq/queen/pkg/buildinfo.commit=$(COMMIT)

# Without the pages of gRPC's own traces, which nobody serves, a binary is a sixth smaller.
TAGS := grpcnotrace

GOLANGCI := $(BIN)/golangci-lint

# The builder of the images: a module of its own, and no part of the workspace.
IMAGE := deploy/image

CHART       := charts/queen
CHART_TOOLS := $(addprefix $(BIN)/,helm helm-unittest helm-docs)
HELM_DOCS   := $(BIN)/helm-docs --chart-search-root charts --sort-values-order file --log-level warn

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: run
run: ## Start PostgreSQL and Queen locally, prove it with a first message (RESET=1 starts empty)
	@go build -o $(BIN)/queen-local ./services/tests/cmd/local && exec $(BIN)/queen-local

.PHONY: build
build: ## Build the services into .bin/
	@mkdir -p $(BIN)
	@for s in $(SERVICES); do echo "build $$s"; \
		go build -trimpath -tags $(TAGS) -ldflags '$(LDFLAGS)' -o $(BIN)/queen-$$s ./services/$$s || exit 1; done

# Images bear the version that the chart asks for, and the time of the last commit, so
# that the same commit gives the same digests.
IMAGE_VERSION     ?= $(shell awk '$$1 == "appVersion:" {gsub(/"/, "", $$2); print $$2}' $(CHART)/Chart.yaml)
PLATFORMS         ?= linux/amd64,linux/arm64
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)

.PHONY: image
image: $(BIN)/image ## Build the container images into .bin/images/, without a container engine (PLATFORMS=, IMAGE_VERSION=)
	$(BIN)/image -source . -out $(BIN)/images -platforms $(PLATFORMS) -version $(IMAGE_VERSION) \
		-revision $(COMMIT) -created $(SOURCE_DATE_EPOCH) $(IMAGES)

.PHONY: image-test
image-test: ## Test the images: size, content, and that the same source gives the same digests
	cd $(IMAGE) && GOWORK=off go test -count=1 ./...

# Images of the cluster test are of this machine's architecture, and have a tag of their
# own: a cluster keeps what it has of a tag that it knows.
IMAGE_TAG ?= e2e-$(shell date +%s)
E2E       := $(BIN)/chart-e2e

.PHONY: chart-e2e
chart-e2e: $(BIN)/image $(BIN)/helm ## Install the chart into the cluster of KUBECONFIG and prove it there under load (IMAGE_LOADER=)
	@rm -rf $(E2E) && mkdir -p $(E2E)
	QUEEN_TEST_CLUSTER=1 go test -count=1 ./charts/tests/cluster -run Requirements
	$(BIN)/image -source . -out $(E2E)/images -platforms linux/$$(go env GOARCH) -version $(IMAGE_TAG) -revision $(COMMIT)
	$(BIN)/image -source . -out $(E2E)/images -platforms linux/$$(go env GOARCH) -version $(IMAGE_TAG) -revision $(COMMIT) \
		queenmq/queen-soak=github.com/queenmq/queen/services/tests/cmd/soak
	QUEEN_TEST_CLUSTER=1 IMAGE_TAG=$(IMAGE_TAG) go test -count=1 -timeout 60m -v ./charts/tests/cluster -run Chart

.PHONY: test
test: ## Run every test; race detector on for the packages with concurrency
	go test -race $(RACE_PACKAGES)
	go test ./sql/... ./pkg/store
	go test -count=1 -p 1 ./services/tests/... # they drive binaries, of which the test cache knows nothing
	QUEEN_TEST_BROKERS=3 go test -count=1 ./services/tests/e2e -run '$(CLUSTER_TESTS)'

.PHONY: chart-test
chart-test: $(CHART_TOOLS) ## Check the Helm chart: unit tests, all that it renders, its documentation
	@echo "unit tests of the templates"; $(BIN)/helm-unittest --strict $(CHART)
	@echo "what the chart renders, and refuses"; go test -count=1 ./charts/tests/... # they run Helm, of which the test cache knows nothing
	@echo "documentation of the values"; $(HELM_DOCS) --dry-run \
		| diff --unified $(CHART)/README.md - || { echo "make chart-docs writes $(CHART)/README.md anew"; exit 1; }

.PHONY: chart-docs
chart-docs: $(CHART_TOOLS) ## Write charts/queen/README.md from its template and the comments of the values
	$(HELM_DOCS)

.PHONY: test-engine
test-engine: ## Run the end-to-end suite with three brokers, and with each accelerator switched off
	QUEEN_TEST_BROKERS=3 go test -timeout 20m ./services/tests/e2e
	@for switch in $(SWITCHES); do echo "end-to-end suite with $$switch"; \
		QUEEN_TEST_BROKER_ENV=$$switch go test -timeout 20m ./services/tests/e2e || exit 1; done
	QUEEN_TEST_BROKERS=3 QUEEN_TEST_BROKER_ENV="$(SWITCHES)" go test -timeout 20m ./services/tests/e2e

.PHONY: test-retention
test-retention: ## Hunt for minutes for deadlocks, lost writes and crashes of retention
	QUEEN_TEST_LONG=1 go test -count=1 -timeout 20m ./services/tests/retention

.PHONY: test-sweeper
test-sweeper: ## Let sweepers steal each other's leases for minutes, and look for a timer that fired twice or never
	QUEEN_TEST_LONG=1 go test -count=1 -timeout 20m ./services/tests/sweeper

.PHONY: test-rolling
test-rolling: ## Replace every process again and again under load, and look for a lost message or an error
	QUEEN_TEST_LONG=1 go test -count=1 -timeout 20m ./services/tests/rolling

.PHONY: test-race
test-race: ## Run every test with the race detector, the broker under test included
	QUEEN_TEST_RACE=1 go test -race -timeout 30m $(PACKAGES)

.PHONY: bench
bench: ## Hold the broker to its targets, row by row (ARGS="-quick -only w1,w2", ARGS=-list)
	@go run ./services/tests/bench $(ARGS)

.PHONY: bench-retention
bench-retention: ## Hold the maintainer to its targets, row by row (ARGS as for bench)
	@go run ./services/tests/bench -table retention -json .bin/bench-retention.json $(ARGS)

.PHONY: bench-timers
bench-timers: ## Hold timers and the sweeper to their targets, row by row (ARGS as for bench)
	@go run ./services/tests/bench -table timers -json .bin/bench-timers.json $(ARGS)

.PHONY: bench-kv
bench-kv: ## Hold key/value state to its targets, beside pgbench (ARGS as for bench)
	@go run ./services/tests/bench -table kv -json .bin/bench-kv.json $(ARGS)

.PHONY: bench-admin
bench-admin: ## Hold management routes and scrapes to their targets on 5 million messages (ARGS as for bench)
	@go run ./services/tests/bench -table admin -json .bin/bench-admin.json $(ARGS)

.PHONY: lint
lint: $(GOLANGCI) ## Run golangci-lint with the pinned version, dependency rule included
	$(GOLANGCI) run $(PACKAGES)
	cd $(IMAGE) && GOWORK=off $(GOLANGCI) run --config $(CURDIR)/.golangci.yml ./...

.PHONY: fmt
fmt: $(GOLANGCI) ## Format the Go code
	$(GOLANGCI) fmt $(PACKAGES)

.PHONY: tidy
tidy: ## Tidy the go.mod files
	@for m in $(MODULES) $(IMAGE); do echo "tidy $$m"; (cd $$m && GOWORK=off go mod tidy); done

.PHONY: verify
verify: ## Check formatting, go.mod files, and that every module builds on its own
	@out=$$(gofmt -l $(MODULES)); [ -z "$$out" ] || { echo "gofmt would change:"; echo "$$out"; exit 1; }
	@for m in $(MODULES); do echo "verify $$m"; \
		(cd $$m && GOWORK=off go mod tidy -diff && GOWORK=off go build -o /dev/null ./... && GOWORK=off go vet ./...); done
	@echo "verify $(IMAGE)"; out=$$(gofmt -l $(IMAGE)); [ -z "$$out" ] || { echo "gofmt would change:"; echo "$$out"; exit 1; }; \
		cd $(IMAGE) && GOWORK=off go mod tidy -diff && GOWORK=off go vet ./...
	@for f in deploy/grafana/queen-*.json; do cmp $$f $(CHART)/files/dashboards/$${f##*/} || exit 1; done
	@cmp deploy/prometheus/alerts.yaml $(CHART)/files/alerts.yaml

.PHONY: chart-files
chart-files: ## Copy dashboards and alerts of deploy/ into the chart, which reads no files but its own
	@mkdir -p $(CHART)/files/dashboards
	cp deploy/grafana/queen-*.json $(CHART)/files/dashboards/
	cp deploy/prometheus/alerts.yaml $(CHART)/files/

$(BIN)/image: $(wildcard $(IMAGE)/*.go) $(IMAGE)/go.mod $(IMAGE)/go.sum
	@mkdir -p $(BIN)
	cd $(IMAGE) && GOWORK=off go build -o $@ .

# The linter is a tool dependency of its own module, so that its dependencies
# never meet those of the product.
$(GOLANGCI): .tools/go.mod .tools/go.sum
	@mkdir -p $(BIN)
	cd .tools && GOWORK=off go build -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

# Helm, its unit tests and its documentation share a module, so that Kubernetes'
# libraries are compiled once for all three. Helm takes the version of Kubernetes
# that it renders for, unless it is told another, from the linker.
$(CHART_TOOLS) &: .tools/helm/go.mod .tools/helm/go.sum
	@mkdir -p $(BIN)
	@cd .tools/helm && export GOWORK=off && helm=helm.sh/helm/v3 && \
	minor=$$(go list -m -f '{{.Version}}' k8s.io/client-go | cut -d. -f2) && \
	echo "build helm, helm-unittest and helm-docs" && go build -o $(BIN)/ -ldflags "-s -w \
		-X $$helm/internal/version.version=$$(go list -m -f '{{.Version}}' $$helm) \
		-X $$helm/pkg/chartutil.k8sVersionMajor=1 -X $$helm/pkg/chartutil.k8sVersionMinor=$$minor \
		-X $$helm/pkg/lint/rules.k8sVersionMajor=1 -X $$helm/pkg/lint/rules.k8sVersionMinor=$$minor" tool
	@touch $(CHART_TOOLS)
