.DEFAULT_GOAL := help

no_go := $(shell e2e/need-go)
ifneq (,$(no_go))
$(error $(no_go))
endif

main_targets := demo check kernel-test e2e test nightly

.PHONY: help help-all
help: ## Show the targets that a contributor needs
	@for target in $(main_targets); do awk -F ':.*## ' '$$1 == "'$$target'" { printf "  make %-12s %s\n", $$1, $$2 }' Makefile; done
	@echo; echo 'The first run takes longer: it downloads and builds. make help-all lists all targets; docs/lab.md explains their variables.'
help-all: ## List all targets
	@awk -F ':.*## ' '/^##@ / { printf "\n%s\n", substr($$0, 5) } /^[a-z0-9-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' Makefile

##@ Build and check: what a change needs

# Compiled code contains no directory names, so that all clones on this machine share the build cache. Without C, programs link in half the time.
export GOFLAGS := -trimpath $(filter-out -trimpath,$(GOFLAGS))
export CGO_ENABLED := 0
# KUBERNETES=1.34.4 runs the end-to-end tests with that version of Kubernetes (docs/control-plane.md#versions).
export KUBE_IPVS_KUBERNETES := $(KUBERNETES)

agent := bin/kube-ipvs
linters := .cache/tools/golangci-lint
# The commit is empty outside a clone.
commit := $(shell git describe --always --abbrev=40 --exclude='*' --dirty 2>/dev/null)

.PHONY: build
build: ## Build bin/kube-ipvs
	@go build -ldflags '-X main.commit=$(commit)' -o $(agent) ./cmd/kube-ipvs

.PHONY: kubectl-ipvs
kubectl-ipvs: ## Build bin/kubectl-ipvs for this machine; with it in the PATH, kubectl has the command ipvs
	@go build -o bin/kubectl-ipvs ./cmd/kubectl-ipvs

# Downloads fail now and then. apt (for the lab's kernels) retries on its own; go does not.
retry = for pause in 5 30 0; do $1 && break; [ $$pause != 0 ] || exit 1; echo "trying again in $$pause s: $1" >&2; sleep $$pause; done
sums := $(wildcard go.sum e2e/*/go.sum e2e/tools/*/go.sum e2e/testbed/upstream/*/go.sum)

.PHONY: fetch
fetch: .cache/fetched ## Download the Go modules that the tests need, with retries
	@:
.cache/fetched: $(sums)
	@for module in . e2e/chart e2e/release; do $(call retry,go -C $$module list -deps -test ./... >/dev/null); done
	@for module in e2e/tools/golangci-lint e2e/tools/actionlint e2e/chart; do $(call retry,go -C $$module list -deps tool >/dev/null); done
	@$(call retry,go run ./e2e/testbed/cmd/upstream -fetch)
	@mkdir -p $(@D) && touch $@

.cache/tools/%: e2e/tools/%/go.mod e2e/tools/%/go.sum
	@echo 'building $* (minutes, the first time only)' >&2
	@cd e2e/tools/$* && go build -o ../../../$@ tool

# The race detector needs a C compiler. Without one, make prints a note; CI has one.
race := $(shell command -v gcc >/dev/null 2>&1 && echo -race)

# Packages with goroutines or locks. In all others, the race detector finds nothing, and makes tests take five times as long. A test keeps this list
# complete. The longest come first.
concurrent := ./cmd/kubectl-ipvs ./internal/agent ./internal/config ./internal/watch ./internal/watch/manifests ./internal/fleet/pods ./internal/bundle ./internal/daemon ./internal/forward ./internal/healthport ./internal/kernel/iptables ./internal/kernel/live ./internal/kernel/netdev ./internal/kernel/nft/balance ./internal/kernel/nft/wire ./internal/kernel/ownthread ./internal/kernel/sockets ./internal/lastknown ./internal/localports ./internal/loopback ./internal/machine ./internal/status ./internal/telemetry ./internal/ui ./internal/ui/node ./cmd/kube-ipvs

.PHONY: check
check: lint unit ages ## Check format, linters, unit and golden tests, with the race detector (3 minutes); needs no root

# What the agent for Windows consists of, apart from packages that compute.
windows_packages := ./cmd/kube-ipvs ./internal/daemon ./internal/forward ./internal/freeport ./internal/iphelper ./internal/userspace

.PHONY: lint
lint: $(linters) .cache/tools/actionlint ## Format and linters
	@unformatted=$$(gofmt -l cmd internal e2e); test -z "$$unformatted" || { echo "not formatted (gofmt -w):" $$unformatted >&2; exit 1; }
	@$(linters) run ./...
	@$(linters) run --build-tags pause ./internal/kernel/live
	@GOOS=windows GOARCH=amd64 $(linters) run $(windows_packages)
	@GOOS=windows GOARCH=amd64 go build -o /dev/null ./cmd/kube-ipvs
	@cd e2e/chart && $(CURDIR)/$(linters) run ./...
	@.cache/tools/actionlint -shellcheck= -pyflakes= .github/workflows/*.yml # only its own checks, on every machine

# Tests with thousands of consecutive syncs or answers. The race detector sees the same goroutines in its other tests.
many_syncs := ^Test(ManyNodes|Crash|EveryCallFails|AuditsOfAChangingCluster|ScriptsConverge|NoRaceToBeFirst|Cost|LargeServicesCostOthersNothing|RandomChangesConverge|FaultsAffectOneObject)$$

sequential = $(filter-out $(concurrent),$(shell go list -f '.{{slice .Dir (len .Module.Dir)}}' ./cmd/... ./internal/...))

.PHONY: unit unit-race unit-plain
unit:
	+@$(sub) -k -j2 unit-race unit-plain
unit-race:
	@$(if $(race),,echo 'no gcc: the race detector is off' >&2;) CGO_ENABLED=$(if $(race),1,0) $(recording) go test $(race) $(if $(SHUFFLE),-shuffle=$(SHUFFLE)) -skip '$(many_syncs)' $(concurrent)
unit-plain:
	@$(recording) go test -run '$(many_syncs)' ./internal/agent ./internal/fleet/pods
	@$(recording) go test $(sequential)
	@$(recording) go test -short ./e2e/bench ./e2e/demo ./e2e/ran ./e2e/conformance/... ./e2e/differential/draw ./e2e/differential/judge ./e2e/record ./e2e/scoreboard ./e2e/site ./e2e/stories/guides ./e2e/testbed/cmd/kubeproxyfields ./e2e/testbed/contain ./e2e/testbed/debian ./e2e/testbed/manifest ./e2e/testbed/realcluster

.PHONY: docs
docs: ## Write the documentation as a website, which needs no network, to .cache/docs or OUT
	@go run ./e2e/site/cmd '$(or $(OUT),.cache/docs)'

.PHONY: vuln
vuln: .cache/tools/govulncheck ## Check the code called by the agent for known vulnerabilities; needs vuln.go.dev or GOVULNDB
	@.cache/tools/govulncheck ./cmd/...

# Skips slow tests that have no golden files. The chart's golden files depend on files in these directories only; rendering compiles Helm.
chart_sums := find charts e2e/chart -type f | sort | xargs sha256sum

.PHONY: golden
golden: ## Rewrite the golden files with the code's current output; read the diff before you commit it
	@go test ./internal/compile ./internal/config ./internal/watch ./internal/watch/manifests ./internal/inspect ./internal/telemetry ./cmd/kube-ipvs ./e2e/differential/judge -update \
		-skip '^Test(CompileTimeIsBounded|API|WatchFromFutureVersion|BothSourcesAgree|FileOverTheLimit|StopCuts|Occupant)'
	@mkdir -p .cache; test "$$($(chart_sums))" = "$$(cat .cache/golden-chart 2>/dev/null)" || { \
		echo 'rendering the chart (minutes, the first time, to compile Helm)' >&2; \
		(cd e2e/chart && go test . -run 'Plain|Everything|Readme|Notes' -update) && $(chart_sums) >.cache/golden-chart; }

##@ A kernel with IPVS

# The lab: a kernel with IPVS for any command or test. docs/lab.md describes it and these variables.
#   RUN      the command (lab), or a regular expression for test names (kernel-test)
#   LAB      auto, fast, native, uml, qemu KERNEL   5.10, 6.1, 6.12, unstable or a path
#   LAB_CLOCK=virtual with LAB=uml: no result depends on the machine's speed; with PAUSE=1, time passes after each write of the agent
#   LAB_CLOCK=skipping with LAB=uml: waiting takes no time
#   TIMEOUT  such as 90s; 0 for none       OUT      directory for the lab's $LAB_OUT
#   PKG      packages of kernel-test       COUNT, V as in go test -count, -v
# e2e has more: RULES=nftables without iptables, DATA_PLANE=nftables without IPVS, DATA_PLANE=userspace, ADDRESSES=routes, API=small for a fast API server,
# SIZE=full for the sizes of docs/scoreboard.md.

lab_bin := .cache/lab/bin/lab
lab_flags = -lab='$(LAB)' -kernel='$(KERNEL)' -timeout='$(TIMEOUT)' -out='$(OUT)'

# The lab is linked statically, because it also runs in the guest, which may have different libraries.
.PHONY: lab-bin
lab-bin:
	@go build -o $(lab_bin) ./e2e/lab

# Lab recipes use exec, so that the lab's parent is make itself and the lab ends with it.
.PHONY: lab
lab: export LAB_RUN = $(value RUN)
lab: lab-bin ## Run a shell command on a kernel with IPVS: make lab RUN='ipvsadm -Ln'
	@exec $(lab_bin) run $(lab_flags)

.PHONY: lab-shell
lab-shell: lab-bin ## Open a shell on a kernel with IPVS
	@exec $(lab_bin) shell $(lab_flags)

.PHONY: kernel-test
kernel-test: export LAB_RUN = $(value RUN)
kernel-test: $(if $(prepared),,lab-bin) ## Run the tests that need a kernel (4 minutes): make kernel-test PKG=./internal/kernel RUN=TestName
	@exec $(lab_bin) kernel-test $(lab_flags) -pkg='$(PKG)' -count='$(COUNT)' -v='$(V)'

.PHONY: lab-test
lab-test: lab-bin ## Test the lab itself, end to end; LAB selects which
	@LAB_SELFTEST='$(or $(LAB),auto)' LAB_SELFTEST_KERNEL='$(KERNEL)' $(recording) go test -count=1 -timeout=20m $(if $(V),-v) -run '$(or $(value RUN),.)' ./e2e/lab

##@ End-to-end tests

.PHONY: upstream
upstream: ## Build kube-apiserver and etcd for the end-to-end tests (minutes, the first time only)
	@go run ./e2e/testbed/cmd/upstream

.PHONY: next-nft
next-nft:
	@go run ./e2e/testbed/cmd/debian nft

# The end-to-end packages. PACKAGE:TESTS selects some tests of a package, and -PACKAGE:TESTS leaves them out.
e2e_packages := $(addprefix ./e2e/stories/,services kubeproxy schedulers coexist guides image scale inspect) ./e2e/testbed/cluster ./e2e/differential
firewall_tests := ./e2e/stories/inspect:TestFirewallPrograms

image := .cache/image
contain := .cache/contain
package := .cache/package
pausing := .cache/pausing/kube-ipvs

.PHONY: image
image: ## Build the image's files in .cache/image with the Dockerfile's commands, without a container engine
	@go run ./e2e/stories/image/cmd '$(image)'

.PHONY: package
package: ## Build the agent's deb and rpm for this machine's architecture in .cache/package
	@cd e2e/release && go run . package -checkout ../.. -out '$(CURDIR)/$(package)'

.PHONY: contain
contain:
	@go build -o $(contain) ./e2e/testbed/contain

# This agent lets time pass after each write, so that tests find gaps on the virtual clock; see internal/kernel/live/pause.go.
.PHONY: pausing
pausing:
	@go build -tags pause -o $(pausing) ./cmd/kube-ipvs

# The previous version is the newest release or, before the first one, the commit that recorded what the release will leave in the kernel.
.PHONY: previous
previous:
	@rm -rf .cache/previous && mkdir -p .cache/previous/source
	@ref='$(PREVIOUS)'; : $${ref:=$$(git describe --tags --abbrev=0 --match 'v*' HEAD^ 2>/dev/null || git log -1 --format=%h -- internal/agent/testdata)}; \
		git archive $$ref go.mod go.sum cmd internal | tar -x -C .cache/previous/source && \
		go -C .cache/previous/source build -ldflags "-X main.version=previous-$$ref" -o ../kube-ipvs ./cmd/kube-ipvs

# All tests start the agent with the privileges granted by the chart. To run it with full privileges: make e2e e2e_agent=bin/kube-ipvs
e2e_agent := e2e/testbed/contained-agent
e2e_image = $(if $(filter ./e2e/stories/image ./e2e/... ./...,$(or $(PKG),$(e2e_packages))),image)
e2e_deb = $(if $(filter ./e2e/stories/host ./e2e/... ./...,$(or $(PKG),$(e2e_packages))),package)

.PHONY: e2e
e2e: export LAB_RUN = $(value RUN)
e2e: e2e_timeout = $(or $(TIMEOUT),90m) # about half an hour on two idle emulated cores
e2e: $(if $(prepared),,lab-bin build pausing previous contain upstream $(e2e_image) $(e2e_deb)) ## Run the end-to-end tests: real API server, real packets (half an hour): make e2e PKG=./e2e/stories/services RUN=TestClusterIP
	@KUBE_IPVS_API='$(API)' KUBE_IPVS_SIZE='$(SIZE)' KUBE_IPVS_PAUSE='$(PAUSE)' KUBE_IPVS_RULES='$(RULES)' KUBE_IPVS_DATA_PLANE='$(DATA_PLANE)' KUBE_IPVS_ADDRESSES='$(ADDRESSES)' KUBE_IPVS_AGENT='$(CURDIR)/$(e2e_agent)' KUBE_IPVS_ROOT='$(CURDIR)' KUBE_IPVS_E2E=1 \
		KUBE_IPVS_IMAGE='$(CURDIR)/$(image)' KUBE_IPVS_CONTAIN='$(CURDIR)/$(contain)' KUBE_IPVS_DEB='$(CURDIR)/$(package)/kube-ipvs.deb' \
		exec $(lab_bin) kernel-test $(lab_flags) -timeout=$(e2e_timeout) -pkg='$(or $(PKG),$(e2e_packages) -$(firewall_tests))' -count='$(COUNT)' -v='$(V)'

# The clock of this guest counts instructions (docs/lab.md). new-node uses this guest regardless of LAB.
counted := LAB=qemu LAB_ACCEL=counted LAB_CPUS=1

.PHONY: new-node
new-node: ## Measure how soon a new node works among 5,000 Services
	@$(MAKE) --no-print-directory e2e PKG=./e2e/stories/newnode $(counted) V=1

.PHONY: kills
kills: ## Kill the agent after every write of its start, with open connections (7 minutes)
	@$(MAKE) --no-print-directory e2e LAB=uml SIZE=full PKG=./e2e/stories/services RUN='^TestKill9$$'

.PHONY: firewalls-test
firewalls-test: ## Compare explain and doctor with real packets beside Debian's ufw, firewalld and docker
	@go run ./e2e/testbed/cmd/debian firewalls
	@$(MAKE) --no-print-directory e2e LAB=uml LAB_CLOCK=skipping API=small V=1 PKG='$(firewall_tests)'

.PHONY: windows-test
windows-test: ## Run the agent for Windows and its unit tests under Debian's Wine; needs root
	@go run ./e2e/testbed/cmd/debian wine
	@KUBE_IPVS_E2E=1 $(recording) go test -count=1 ./e2e/stories/windows

.PHONY: differential
differential data-planes: export KUBE_IPVS_DIFFERENTIAL_BATCHES = $(or $(BATCHES),60)
differential data-planes: export KUBE_IPVS_DIFFERENTIAL_SERVICES = 150
differential data-planes: export KUBE_IPVS_DIFFERENTIAL_TRANSITIONS = 3
differential: export KUBE_IPVS_DIFFERENTIAL_STATE = state.json
differential: export LAB_HOST_LIMIT = 3h
differential: ## Compare with the real kube-proxy among 9,000 Services (an hour); continues an interrupted run; BATCHES=1 for 150
	@KUBE_IPVS_E2E=1 $(recording) go test ./e2e/differential/draw
	@$(MAKE) --no-print-directory e2e LAB=uml LAB_CLOCK=virtual TIMEOUT=0 V=1 PKG=./e2e/differential RUN='^TestDifferential$$' OUT='$(or $(OUT),.cache/differential)'

.PHONY: data-planes
data-planes: ## Compare the agent with IPVS and the agent with nftables among 9,000 Services (ten minutes); BATCHES=1 for 150
	@$(MAKE) --no-print-directory e2e LAB=uml LAB_CLOCK=virtual TIMEOUT=0 V=1 PKG=./e2e/differential RUN='^TestDataPlanes$$' OUT='$(or $(OUT),.cache/data-planes)'

##@ A cluster with kubelets

# A control plane, two nodes and our chart in a guest of the lab; see docs/cluster.md. RUN, TIMEOUT, OUT and KERNEL work as for the lab.
# LAB=qemu or KERNEL selects a stock kernel. The cluster then takes minutes instead of seconds to start.
cluster_lab = $(or $(filter qemu uml,$(LAB)),$(if $(KERNEL),qemu,uml))
# NODES (default 2) is the number of nodes. They are divided among ZONES (default none).
realcluster := .cache/realcluster/bin/realcluster
export LAB_NODES = $(NODES)
export LAB_ZONES = $(ZONES)
cluster_flags = -lab=$(cluster_lab) -kernel='$(KERNEL)' -out='$(OUT)' -mem='$(or $(LAB_MEM),6G)'
cluster_clock = -clock='$(or $(LAB_CLOCK),$(if $(filter uml,$(cluster_lab)),skipping))'

.PHONY: cluster-prepare
cluster-prepare: lab-bin image
	@$(lab_bin) install nodes
	@go build -o $(dir $(realcluster)) ./e2e/testbed/cmd/realcluster ./cmd/kubectl-ipvs
	@$(realcluster) prepare '$(CURDIR)/$(image)'

.PHONY: cluster
cluster: export LAB_CLUSTER_RUN = $(value RUN)
cluster: cluster-prepare ## Run a shell command in a cluster with real kubelets: make cluster RUN='kubectl get nodes'
	@exec $(lab_bin) run $(cluster_flags) $(cluster_clock) -timeout='$(or $(TIMEOUT),1h)' -- '$(CURDIR)/$(realcluster)' run sh -c 'eval "$$LAB_CLUSTER_RUN"'

.PHONY: cluster-shell
cluster-shell: cluster-prepare ## Open a shell in a cluster with real kubelets
	@exec $(lab_bin) shell $(cluster_flags) -timeout='$(TIMEOUT)' -- '$(CURDIR)/$(realcluster)' run bash

.PHONY: cluster-test
cluster-test: cluster-prepare ## Test install, DNS, rolling updates, upgrades, failures, removal and the move from kube-proxy on real kubelets
	@KUBE_IPVS_ROOT='$(CURDIR)' LAB_RUN='$(value RUN)' exec $(lab_bin) kernel-test $(cluster_flags) $(cluster_clock) -timeout='$(or $(TIMEOUT),90m)' -pkg=./e2e/stories/realcluster -v='$(V)'

# All network tests except those that need a cloud, the internet, a network plugin with policies, a change of kube-proxy, or SCTP clients
# on nodes, which these tests do not have yet.
k8s_e2e_focus := \[sig-network\]
k8s_e2e_skip := \[Feature:(LoadBalancer|NetworkPolicy|Ingress|KubeProxy.*|Networking-.*|PerformanceDNS)\]|LoadBalancers ExternalTrafficPolicy|kube-proxy migration|\[Disruptive\]|\[Provider:|DNS configMap nameserver Forward|(node-pod communication|node-Service): sctp

.PHONY: k8s-e2e
k8s-e2e: export LAB_FOCUS = $(or $(value FOCUS),$(value k8s_e2e_focus))
k8s-e2e: export LAB_SKIP = $(or $(value SKIP),$(value k8s_e2e_skip))
k8s-e2e: cluster-prepare ## Run Kubernetes' own end-to-end tests in a cluster: make k8s-e2e FOCUS='Services.*Conformance'; continues where it stopped
	@go run ./e2e/testbed/cmd/upstream -tests
	@go build -o .cache/realcluster/bin/k8s-e2e ./e2e/conformance/upstream/cmd
	@exec .cache/realcluster/bin/k8s-e2e -focus="$$LAB_FOCUS" -skip="$$LAB_SKIP" -dir='$(or $(OUT),.cache/k8s-e2e)' \
		$(lab_bin) run $(cluster_flags) $(cluster_clock) -timeout='$(or $(TIMEOUT),6h)' -- '$(CURDIR)/$(realcluster)' run

##@ Performance

benched := ./internal/compile ./internal/diff ./internal/agent ./internal/kernel ./internal/kernel/ipvs ./internal/telemetry ./internal/watch

# Compares allocations with the recorded ones. Times are only shown, because they depend on the machine.
.PHONY: bench
bench: benchmarks := $(or $(OUT),.cache/bench.txt)
bench: .cache/tools/benchstat ## Run the Go benchmarks and compare allocations with the recorded ones (minutes); OUT=e2e/bench/recorded.txt records
	@go test -run '^$$' -bench . -benchmem -benchtime=1x -count=6 $(benched) >'$(benchmarks).new' || { cat '$(benchmarks).new'; exit 1; }
	@sed 's/[0-9.]* ns\/op//' '$(benchmarks).new' >'$(benchmarks)' && .cache/tools/benchstat e2e/bench/recorded.txt '$(benchmarks)' && \
		.cache/tools/benchstat -filter .unit:sec/op '$(benchmarks).new' && rm '$(benchmarks).new'

# Smaller cases come first.
bench_cases := $(foreach n,100 1000 5000 10000,$(foreach p,kube-ipvs iptables ipvs nftables,$p/$n)) \
	kube-ipvs/50000 kube-ipvs-routes/50000 $(foreach n,100 1000,kube-router/$n) $(foreach n,1000 10000,kube-ipvs-nftables/$n) \
	$(foreach p,ipvs-alone ipvs-conntrack kube-ipvs kube-ipvs-nftables iptables ipvs nftables kube-router,$p/1000/packets) \
	$(foreach p,kube-ipvs kube-ipvs-nftables nftables,$p/10000/packets) $(foreach p,kube-ipvs iptables ipvs nftables,$p/1000/storms)
measured = $(filter $(or $(CASES),%),$(bench_cases))
bench_out = $(or $(OUT),.cache/bench)

.PHONY: bench-peers
bench-peers: lab-bin build contain upstream ## Measure kube-ipvs, kube-proxy, kube-router and IPVS without a proxy (hours); continues an interrupted run; CASES=kube-ipvs/1000, CASES=%/packets
	@$(if $(filter kube-router/%,$(measured)),go run ./e2e/testbed/cmd/upstream -peers)
	@n=0; for case in $(or $(measured),$(error no case matches $(CASES): $(bench_cases))); do \
		n=$$((n + 1)); name=$$(echo $$case | tr / -); [ ! -e $(bench_out)/$$name/done ] || continue; \
		echo "$$(date +%T) $$case ($$n of $(words $(measured)))" >&2; rm -rf $(bench_out)/$$name; mkdir -p $(bench_out); \
		KUBE_IPVS_BENCH=$$case KUBE_IPVS_AGENT='$(CURDIR)/$(e2e_agent)' KUBE_IPVS_ROOT='$(CURDIR)' KUBE_IPVS_CONTAIN='$(CURDIR)/$(contain)' KUBE_IPVS_E2E=1 \
			LAB_ACCEL=counted LAB_CLOCK=skipping LAB_CPUS=1 $(lab_bin) kernel-test -lab=qemu -kernel='$(KERNEL)' -timeout=3h -out=$(bench_out)/$$name -pkg=./e2e/bench -v=1 \
			>$(bench_out)/$$name.log 2>&1 || { tail -20 $(bench_out)/$$name.log >&2; exit 1; }; \
		touch $(bench_out)/$$name/done; \
	done; echo 'the results are in $(bench_out)' >&2

##@ Parts of the tests

.PHONY: control-plane-test
control-plane-test: $(if $(prepared),,upstream) ## Test the control plane that the end-to-end tests use
	@KUBE_IPVS_E2E=1 $(recording) go test ./e2e/testbed/controlplane ./e2e/testbed/upstream

.PHONY: chart-test
chart-test: chart_run = -run '$(or $(value RUN),.)'
chart-test: $(if $(prepared),,upstream lab-bin) ## Test the Helm chart, the plain manifests, the image's files, and the quick parts of a release
	@KUBE_IPVS_E2E=1 $(recording) go test -count=1 -timeout=15m $(chart_run) ./e2e/stories/image # make e2e runs the tests that need a kernel
	@$(lab_bin) install chart
	@cd e2e/chart && KUBE_IPVS_E2E=1 $(recording) go test -count=1 -timeout=15m $(chart_run) ./...
	@cd e2e/release && $(recording) go test -short $(chart_run) ./...

.PHONY: page-test
page-test: lab-bin ## Test the page of the command ui in headless Chromium; PAGE_PICTURES=DIR keeps pictures of each view
	@$(lab_bin) install browser
	@KUBE_IPVS_E2E=1 $(recording) go test -count=1 ./e2e/stories/page

##@ Release

release release-publish release-dry-run: out = $(abspath $(or $(OUT),.cache/release/$(VERSION)))
publish = cd e2e/release && go run . publish $1-checkout ../.. -version '$(VERSION)' -image '$(IMAGE)' -charts '$(CHARTS)' -from '$(out)' $(if $(DRAFT),-draft)

.PHONY: release
release: ran ## Build all files of a release, if the long tests have proven it: make release VERSION=v0.1.0 [IMAGE=REGISTRY/REPOSITORY] [DRAFT=1] [SIGNED=1]; docs/release.md
	@$(if $(DRAFT),,$(ran) proven)
	@cd e2e/release && go run . build -checkout ../.. -version '$(VERSION)' -image '$(IMAGE)' -out '$(out)' $(if $(DRAFT),-draft) $(if $(SIGNED),-signed)
	@echo 'made $(out)'

.PHONY: release-publish
release-publish: ## Publish the files of make release: make release-publish VERSION=v0.1.0 IMAGE=REGISTRY/REPOSITORY CHARTS=REGISTRY/PATH
	@$(call publish)

.PHONY: release-dry-run
release-dry-run: release ## Do what the release workflow does, publish nothing, and name each key and login that is missing; the variables of make release and CHARTS
	@$(call publish,-dry-run )

.PHONY: release-test
release-test: $(linters) .cache/tools/cosign ## Build a release twice and test all of it, the deb on a booted system
	@cd e2e/release && ../../$(linters) run ./... && KUBE_IPVS_E2E=1 $(recording) go test -count=1 -timeout=60m ./...
	+@$(sub) e2e PKG=./e2e/stories/host LAB=fast

##@ Everything

no_lab := $(filter userspace,$(DATA_PLANE))
.PHONY: demo
demo: $(if $(no_lab),,lab-bin) build ## Show the agent at work, step by step (a minute); DATA_PLANE=nftables needs no IPVS, userspace no root
	@go build -o .cache/demo ./e2e/demo
	@KUBE_IPVS_DATA_PLANE='$(DATA_PLANE)' exec $(if $(no_lab),,$(lab_bin) run $(lab_flags) --) .cache/demo -agent '$(CURDIR)/$(agent)'

# The guests of make test have their own clocks, so that the machine's speed and load do not change the results. Stories and kernel tests run in
# user-mode Linux with a virtual clock. Those that depend on the kernel (netlink formats, ipvsadm, and one story for each kind of Service) also
# run on a stock kernel whose clock counts instructions. make nightly runs the rest.
virtual := LAB=uml LAB_CLOCK=virtual
counted_stock := $(counted) KERNEL=6.1
# Tests of properties that must hold at every instant: they run with PAUSE=1.
services := ./e2e/stories/services
gap_tests := $(services):TestGaps|TestGuards \
	./e2e/stories/coexist:TestTwoAgents|TestOthersFlush|TestBesideKubeProxy|TestHandover|TestMoveRules \
	./e2e/stories/schedulers:TestAllPorts|TestChangesLoseNothing|TestSchedulerModuleLoadedLater|TestWeightsThatComeAndGo
# Tests that would prove nothing on a virtual clock. e2e/ran/nightly.txt gives the reasons.
real_clock_tests := ./e2e/stories/scale:TestChangesDuringAudits
# Tests that need a real API server.
real_api_tests := $(services):TestFamilies|TestHostileNeighbors
# Tests of features that are missing where nftables balances.
ipvs_tests := $(services):TestBridge|TestIsolation
# Tests of what rules do, or of what outlives the agent: user space has neither.
kernel_tests := $(services):TestMasqueradeModes|TestCanary|TestKill9|TestStartAfterFlush|TestOwnConnectionsFromANodePort
# Tests that unload IPVS, which must have no user.
move_tests := $(services):TestMoveToIPVS|TestReloadedModule
# docs/known-limits.md lists what make test leaves out.
gate_packages := $(filter-out ./e2e/stories/kubeproxy ./e2e/differential,$(e2e_packages))
# Slow tests that depend little on the kernel: all backends together, the programs of iptables, limits of settings, packet traces.
long_kernel_tests := ./internal/kernel/live ./internal/kernel/iptables ./internal/config ./internal/explain
# Here make test records which tests ran, and the objects that stories sent to the small API server.
gate := $(CURDIR)/.cache/gate
ran := $(CURDIR)/.cache/bin/ran
sub := $(MAKE) --no-print-directory
kinds := ^Test(ClusterIP|NodePort|LoadBalancer|ExternalIPs)$$
one_of_each := /^(pod_to_pod|a_process|a_client|a_pod|at_every_node|reached_from)

.PHONY: prepare
prepare: fetch lab-bin build pausing previous contain upstream next-nft image $(linters) .cache/tools/actionlint ## Download and build what the tests need, which takes minutes the first time; they then need no network
	@echo 'building the tests (half a minute, the first time only)' >&2
	@cd e2e/chart && go tool helm version >/dev/null
	@$(lab_bin) kernel-test -build -pkg='./internal/... $(sort $(foreach p,$(gate_packages),$(firstword $(subst :, ,$p))))'
	+@$(sub) lab $(virtual) RUN=true
	+@$(sub) lab $(counted_stock) RUN=true

# Random tests draw the same examples in every run. Choose others with RAPID_SEED=2, or 0 for new ones each time.
test: export RAPID_SEED ?= 1

# As many parts run at a time as there are CPUs. Guests of user-mode Linux slow each other down, because each changes the host's page
# tables, so the parts that need no such guest run first, next to the stories, which take longest.
.PHONY: test
test: started := $(shell date +%s)
test: prepare ran ## Run the tests that a change must pass (14 minutes); fails if one is skipped, or runs nowhere
	@rm -rf $(gate)
	+@prepared=$$(date +%s); echo "downloading and building took $$((prepared - $(started))) s"; \
		$(sub) lint || exit 1; export GOPROXY=off; linted=$$(date +%s); \
		$(sub) unit $(gate_recording); unit=$$?; \
		echo "lint took $$((linted - prepared)) s, the unit tests $$(($$(date +%s) - linted)) s"; \
		$(sub) -k -j$$(nproc) $(parts) prepared=1 $(gate_recording); parts=$$?; \
		echo "the tests took $$(($$(date +%s) - prepared)) s"; exit $$((unit | parts))
	@$(ran) check '$(gate)'

gate_recording = recording='$(ran) test $(gate)/host.jsonl'
parts := gate-stories gate-stock-kernel gate-stock-stories chart-test control-plane-test gate-gaps gate-kernel gate-real-api gate-rules gate-data-plane gate-userspace gate-accepted
.PHONY: $(parts)
gate-stories:
	+@LAB_HOST_LIMIT=1h $(sub) e2e $(virtual) API=small PKG='$(gate_packages) $(addprefix -,$(gap_tests) $(move_tests) $(real_api_tests) $(real_clock_tests) $(firewall_tests))' OUT=$(gate)/stories
gate-gaps:
	+@$(sub) e2e $(virtual) API=small PAUSE=1 PKG='$(gap_tests)' OUT=$(gate)/gaps
gate-rules: # each kind of Service without iptables, and with routes instead of addresses
	+@$(sub) e2e $(virtual) API=small RULES=nftables ADDRESSES=routes PKG=./e2e/stories/services RUN='$(value kinds)' OUT=$(gate)/rules
gate-data-plane: # all stories of Services without IPVS
	+@$(sub) e2e $(virtual) API=small DATA_PLANE=nftables PKG='./e2e/stories/scale:TestFaultsOnTheKernel $(services) $(addprefix -,$(gap_tests) $(move_tests) $(real_api_tests) $(ipvs_tests))' OUT=$(gate)/data-plane
	+@$(sub) e2e $(virtual) API=small DATA_PLANE=nftables PAUSE=1 PKG='$(filter $(services):%,$(gap_tests))|$(patsubst $(services):%,%,$(move_tests))' OUT=$(gate)/data-plane-gaps
	+@$(sub) e2e $(virtual) DATA_PLANE=nftables PKG='$(real_api_tests)' OUT=$(gate)/data-plane-real-api
	+@$(sub) e2e $(virtual) PKG=./e2e/differential:TestDataPlanes OUT=$(gate)/data-planes
gate-userspace: # all stories of Services that apply where the agent's process forwards connections
	+@$(sub) e2e $(virtual) API=small DATA_PLANE=userspace PKG='$(services) $(addprefix -,$(gap_tests) $(move_tests) $(real_api_tests) $(ipvs_tests) $(kernel_tests))' OUT=$(gate)/userspace
gate-real-api:
	+@$(sub) e2e $(virtual) PKG='$(real_api_tests)' OUT=$(gate)/real-api
gate-kernel:
	+@$(sub) kernel-test $(virtual) OUT=$(gate)/kernel
gate-stock-kernel:
	+@$(sub) kernel-test $(counted_stock) PKG='$(filter-out $(long_kernel_tests),$(shell go list -f '.{{slice .Dir (len .Module.Dir)}}' ./internal/...))'
gate-stock-stories:
	+@$(sub) e2e $(counted_stock) API=small PKG=./e2e/stories/services RUN='$(value kinds)$(value one_of_each)'
gate-accepted: gate-stories gate-gaps # a real API server accepts what these gave to a small one; gate-rules and gate-data-plane give it the same objects at other addresses
	@KUBE_IPVS_E2E=1 KUBE_IPVS_APPLIED='$(gate)/stories:$(gate)/gaps' $(recording) go test -count=1 -run TestRealServerAccepts ./e2e/testbed/controlplane

.PHONY: stories
stories: ## Run every story in any lab, such as LAB=qemu KERNEL=6.12: those of gaps with pauses, and a few with a real API server
	+@status=0; \
		$(sub) e2e API=small PKG='$(addprefix ./e2e/,stories/services stories/schedulers stories/coexist stories/inspect testbed/cluster) $(addprefix -,$(gap_tests) $(move_tests) $(real_api_tests) $(firewall_tests))' OUT='$(stories_out)/small' || status=1; \
		$(sub) e2e API=small PAUSE=1 PKG='$(gap_tests)' OUT='$(stories_out)/gaps' || status=1; \
		$(sub) e2e PKG='$(real_api_tests)' OUT='$(stories_out)/real-api' || status=1; exit $$status
stories_out = $(or $(OUT),$(CURDIR)/.cache/stories)

.PHONY: broken
broken: upstream ## Break the code on purpose, one patch of e2e/broken after the other, and check that the tests notice (12 minutes); PATCH=e2e/broken/NAME.patch for one
	@e2e/broken/run $(PATCH)

##@ Long tests

.PHONY: ran
ran:
	@go build -o '$(ran)' ./e2e/ran

.PHONY: nightly
nightly: ran ## Run the long tests on a clone of the last commit, oldest results first (a day): make nightly HOURS=2, make nightly PART=fuzz
	@exec '$(ran)' nightly -part='$(PART)' -hours='$(or $(HOURS),0)'

.PHONY: nightly-record
nightly-record: ran ## Add the results of make nightly to the record and its pages, in one commit
	@'$(ran)' keep

.PHONY: pages
pages: ran ## Write docs/conformance.md, docs/scoreboard.md and the tables of other pages from the record
	@'$(ran)' pages

.PHONY: ages
ages: ran
	@'$(ran)' ages

# The rows of docs/scoreboard.md in full size. The clock is virtual where only the order of events and the time that programs wait matter.
rows := $(addprefix R,$(shell seq 22))
full := $(sub) e2e SIZE=full V=1
full_gaps := $(full) $(virtual) API=small PAUSE=1
full_checks = RAPID_CHECKS=$1 $(recording) go test -count=1 -timeout=1h -run '^Test$2$$'
.PHONY: scoreboard $(rows)
scoreboard: ## Measure rows of the scoreboard in full size: make scoreboard ROWS='R7 R21'
	+@status=0; for row in $(or $(ROWS),$(rows)); do $(sub) $$row || status=1; done; exit $$status
R1: kills
R2:
	+@$(full) LAB=uml API=small PKG=./e2e/stories/services RUN='^TestCanary$$'
R3:
	+@$(full_gaps) PKG=./e2e/stories/coexist RUN='^TestHandover$$'
R4:
	+@$(full) $(virtual) TIMEOUT=0 PKG=./e2e/stories/kubeproxy RUN='^TestRepairTimes$$'
R5:
	+@$(full_gaps) PKG=./e2e/stories/coexist RUN='^TestOthersFlush$$'
R6: faults
R7:
	@GOGC=800 $(recording) go test -count=1 -timeout=2h -run '^TestRandomChangesConverge$$' ./internal/agent -seeds=60 -rounds=186
R8: differential
R9:
	+@$(full) LAB=uml PKG=./e2e/stories/scale RUN='^TestCostFollowsTheChange$$'
R10:
	@$(recording) go test -count=1 -run '^(TestAPIFaults|TestRestoredAPIServer)$$' ./internal/watch
R11:
	@$(call full_checks,1000000,ReorderedEventsGiveTheSameModel) ./internal/watch
	@$(call full_checks,200000,EveryHistoryEndsInTheSameModel) ./internal/watch
R12: fuzz
R13:
	+@$(full) LAB=uml API=small PKG=./e2e/stories/services RUN='^TestUDPFailover$$'
R14:
	+@$(full) $(virtual) API=small PKG=./e2e/stories/services RUN='^TestDrain$$/continue'
R15:
	+@$(full) $(virtual) API=small PKG=./e2e/stories/services RUN='^TestDrain$$/reuse'
R16:
	+@$(full) $(virtual) API=small PKG=./e2e/stories/services RUN='^TestNodeAddressAsClusterIP$$'
R17:
	@$(call full_checks,10000,ResultIsIndependentOfHistory) ./internal/compile
R18:
	@$(recording) go test -count=1 ./e2e/testbed/contain
	+@$(full) $(virtual) PKG=./e2e/stories/image RUN='^TestContain$$'
R19:
	+@$(full_gaps) PKG=./e2e/stories/services RUN='^TestGaps$$/first_instant'
R20:
	+@$(full_gaps) PKG=./e2e/stories/coexist RUN='^Test(TwoAgents|BesideKubeProxy)$$'
R21: export KUBE_IPVS_CHURN = 5000s
R4 R21: export LAB_HOST_LIMIT = 1h
R21:
	+@$(full) $(virtual) TIMEOUT=0 PKG=./e2e/stories/scale RUN='^TestChurn$$'
# Without packages that have tests of the kernel, which this machine would skip.
R22:
	+@$(sub) unit-race SHUFFLE='$(or $(SEED),on)' concurrent='$(filter-out ./internal/config ./internal/healthport ./internal/kernel/% ./internal/loopback ./internal/watch ./cmd/kube-ipvs,$(concurrent))'

.PHONY: faults
faults: export GOGC = 400
faults: ## Make each kernel call fail with each error, and make calls fail during random changes (two minutes); ROUNDS=186 for 1,000,000 changes (half an hour)
	@$(recording) go test -count=1 -timeout=3h -run '^Test(EveryCallFails|FaultsAffectOneObject|Crash|RandomChangesConverge)$$' ./internal/agent \
		-seeds=60 -rounds=$(or $(ROUNDS),1)

week_tests := ./e2e/differential:TestWeek ./e2e/stories/services:TestCanary
# SEED, DAYS, SERVICES and EVENTS: see TestWeek.
.PHONY: week
week: export KUBE_IPVS_WEEK_SEED = $(SEED)
week: export KUBE_IPVS_WEEK_DAYS = $(DAYS)
week: export KUBE_IPVS_WEEK_SERVICES = $(SERVICES)
week: export KUBE_IPVS_WEEK_EVENTS = $(EVENTS)
week: export LAB_HOST_LIMIT = 2h
week: ## Simulate a random week of a node on a virtual clock, and days with two versions; SEED=2 for another week, DAYS=1 for a shorter one
	@$(MAKE) --no-print-directory e2e LAB=uml LAB_CLOCK=virtual TIMEOUT=0 V=1 API=small PKG='$(week_tests)'

# Minimize each interesting input for at most a second: with the default of a minute, a few large ones use up the time.
.PHONY: fuzz
fuzz: ## Give each fuzz test a minute (half an hour in all); it continues with the inputs that earlier runs found. FUZZTIME=10s or a number of inputs, such as 1000x
	@status=0; for found in $$(grep -rEo --include='*_test.go' '^func Fuzz\w+' internal | sed 's/func //'); do \
		$(recording) go test "./$$(dirname "$${found%%:*}")" -run '^$$' -fuzz "^$${found#*:}$$" -fuzztime '$(or $(FUZZTIME),1m)' -fuzzminimizetime 1s || status=1; \
	done; exit $$status
