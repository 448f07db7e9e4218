# make alone lists the targets. The Go toolchain is enough for build and test;
# scripts/deps installs what else the tests need, scripts/deps generate what
# generate and lint need.

GO       ?= go
FUZZTIME ?= 30s
PROGRAM  ?= bin/smartcookie
# Without git and without VERSION in the environment the program has none.
STAMP     = $(shell scripts/version 2>/dev/null)

C_FILES := $(wildcard bpf/*.c bpf/*.h bpf/lib/*.h)
SCRIPTS := .ci/run $(wildcard scripts/*) test/kernels/run test/kernels/init \
	$(wildcard test/package/*) packaging/deb/postinst packaging/deb/prerm packaging/deb/postrm

.DEFAULT_GOAL := help
.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | \
		while IFS='|' read -r name text; do printf '  %-16s %s\n' "$$name" "$$text"; done

.PHONY: build
build: ## build bin/smartcookie, a static binary
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '-s -w -X smartcookie/internal/cli.version=$(STAMP)' -o $(PROGRAM) ./cmd/smartcookie

.PHONY: deb
deb: ## build the Debian package into bin
	scripts/deb

.PHONY: test-package
test-package: ## build the Debian package twice, install it in a copy of this root, upgrade, purge (root)
	scripts/deps package
	test/package/run

.PHONY: test-package-clean
test-package-clean: ## the same in a clean Debian 12, and boot it to try the units (root; minutes)
	scripts/deps package-clean
	test/package/clean

.PHONY: generate
generate: ## regenerate BPF objects, their Go and the vectors (clang 19)
	$(GO) generate ./...

.PHONY: check-generated
check-generated: ## fail if what is checked in is not what generate makes
	scripts/check-generated

.PHONY: format
format: ## format Go and C
	gofmt -w .
	clang-format-19 -i $(C_FILES)

.PHONY: lint
lint: lint-go lint-c lint-scripts tidy ## run every linter
.PHONY: lint-go
lint-go:
	@unformatted=$$(gofmt -l .) && \
		if [ -n "$$unformatted" ]; then echo "gofmt: run make format:" $$unformatted; exit 1; fi
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
.PHONY: lint-c
lint-c:
	clang-format-19 --dry-run --Werror $(C_FILES)
.PHONY: lint-scripts
lint-scripts:
	shellcheck $(SCRIPTS)

.PHONY: tidy
tidy: ## check the rules of the house: function length, leftovers, links
	$(GO) test -count=1 ./internal/tidy

.PHONY: test
test: ## install what the tests need and run them all (root)
	scripts/test

.PHONY: test-long
test-long: ## the same, with tests that run for minutes in full (root)
	SMARTCOOKIE_LONG=1 scripts/test -count=1

# What a setup by translation may get wrong.
TRANSLATE := Any|FirstFlight|FirstRequest|Mangled|Shuffled|Repl|Numbers|ServerThatCloses|Reus|Repeated|ProtectedTime|Merged|Duplicated|PortIs|Overflowing|ConnectionHas|Transfers
.PHONY: test-translate
test-translate: ## end-to-end tests once more, with a server that translates (root)
	SMARTCOOKIE_SETUP=translate $(GO) test -count=1 -timeout 20m -run 'Test($(TRANSLATE))' ./test/e2e

.PHONY: test-kernels
test-kernels: ## boot other kernels under qemu and test there (root)
	scripts/deps kernels
	test/kernels/run

.PHONY: bench
bench: ## measure the hot path, as ratios in one run; BENCH_JSON=FILE also writes JSON (root)
	scripts/deps
	$(GO) run ./cmd/smartcookie bench --only testrun,server

.PHONY: evaluation
evaluation: build ## make the papers' experiments and their report, in bin/evaluation (root; the better part of an hour)
	scripts/deps
	bin/smartcookie bench --out bin/evaluation

.PHONY: switching
switching: ## switch the defence on and off ten times under load (root; minutes)
	SMARTCOOKIE_LONG=1 $(GO) test -count=1 -timeout 40m -v -run 'TestSwitching' ./test/e2e

.PHONY: reloads
reloads: ## reload both daemons a thousand times beside live traffic and a flood (root; minutes)
	SMARTCOOKIE_LONG=1 $(GO) test -count=1 -timeout 60m -v -run 'TestReloads' ./test/e2e

.PHONY: loss
loss: ## measure what bad wires cost, as the table of docs/loss.md (root; minutes)
	@mkdir -p bin
	SMARTCOOKIE_LONG=1 LOSS_TABLE=$(CURDIR)/bin/loss.md $(GO) test -count=1 -timeout 30m -run 'TestLossMatrix|Outage' ./test/e2e
	@cat bin/loss.md

.PHONY: strategies
strategies: ## measure every defence beside a flood at full rate, into bin/strategies.md (root)
	@mkdir -p bin
	SMARTCOOKIE_LONG=1 STRATEGY_TABLE=$(CURDIR)/bin/strategies.md $(GO) test -count=1 -timeout 30m -run 'TestStrategiesAtFullRate' ./test/e2e
	@cat bin/strategies.md

.PHONY: floods
floods: ## measure every type of flood, as the table of docs/floods-measured.md (root)
	@mkdir -p bin
	SMARTCOOKIE_LONG=1 FLOOD_TABLE=$(CURDIR)/bin/floods.md $(GO) test -count=1 -timeout 30m -run 'TestEveryTypeOfFlood' ./test/e2e
	@cat bin/floods.md

.PHONY: fuzz
fuzz: ## fuzz every target for FUZZTIME (30s)
	FUZZTIME=$(FUZZTIME) scripts/fuzz
