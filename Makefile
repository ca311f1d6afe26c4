# A thin layer over CMake: `make help` lists what there is.

PREFIX ?= /usr/local
JOBS   ?= $(shell nproc)
T      ?= 60
ROUNDS ?= 500

export JOBS
MAKEFLAGS += --no-print-directory

all: configure ## build the library, build/deltawire and the examples
	@cmake --build build -j $(JOBS)

# At first with the tests off, so that plain `make` asks for no test packages;
# scripts/test.sh switches them on. The file stands for a configure that succeeded.
configure: build/cmake_install.cmake
build/cmake_install.cmake:
	@cmake --preset release -DDW_BUILD_TESTS=OFF

deps: ## install the packages that the build needs, where missing
	@scripts/install-deps.sh build

test: ## install what is missing, build and run every test (STAGES='cli fuzz': only these)
	@scripts/install-deps.sh build test servers
	@scripts/test.sh $(STAGES)

test-peers: ## install a real vLLM and TRL (3.5 GB, once), and run the tests with them
	@scripts/install-deps.sh build test servers
	@scripts/test.sh peers

test-gpu: ## run the kernels on this machine's GPU, against the CPU's results
	@scripts/install-deps.sh build test
	@scripts/test-gpu.sh

test-deploy: ## build the containers, and run them, the units and the pod under deploy/
	@scripts/install-deps.sh deploy
	@scripts/test-deploy.sh $(PARTS)

demo: deps ## install what is missing, build, and watch RL on Wordle over a bucket (STORE=URL)
	@$(MAKE) all
	@build/examples/wordle/wordle-demo $(if $(STORE),--store '$(STORE)') $(DEMO)

demo-hosts: ## the same on three hosts (network namespaces; root) with no way between them
	@scripts/install-deps.sh build servers hosts
	@$(MAKE) all
	@scripts/demo-hosts.sh $(DEMO)

demo-core: deps ## install what is missing, build, and show deltas of a synthetic run beside TRL's
	@$(MAKE) all
	@scripts/demo-core.sh $(or $(SIZE),64M) $(or $(STEPS),6)

demo-trl: ## install vLLM and TRL (3.5 GB, once), and show the real loop at work
	@scripts/install-deps.sh build
	@$(MAKE) all package
	@scripts/demo-trl.sh $(STEPS)

bench: ## install what is missing, build, and print the table of figures
	@scripts/install-deps.sh build bench
	@$(MAKE) all
	@scripts/bench.sh

bench-sync: ## install what is missing, and measure streams over a real S3 server
	@scripts/install-deps.sh build servers bench
	@$(MAKE) all
	@cmake --build build -j $(JOBS) --target bench_sync_programs
	@scripts/bench-sync.sh

bench-pause: ## install what is missing, and measure how long an engine stands still
	@scripts/install-deps.sh build bench
	@$(MAKE) all
	@cmake --build build -j $(JOBS) --target pause_bench pause_engine
	@scripts/bench-pause.sh

bench-quantised: ## install what is missing, and measure fp8 and int8 models beside bf16
	@scripts/install-deps.sh build bench
	@$(MAKE) all
	@cmake --build build -j $(JOBS) --target quant_bench
	@scripts/bench-quantised.sh

bench-gpu: ## measure encoding, decoding and storing on this machine's GPU
	@scripts/install-deps.sh build
	@scripts/bench-gpu.sh

bench-python: ## install what is missing, and measure publishing from PyTorch
	@scripts/install-deps.sh build
	@scripts/bench-python.sh

package: deps ## build the Python package: build-python/dist has archive and wheel
	@scripts/package.sh

wheel: ## build a wheel for other machines, and try it where only Python is (ARCH=aarch64)
	@scripts/install-deps.sh build wheel
	@scripts/wheel.sh $(ARCH)
	@scripts/test-wheel.sh build-wheel/*_$(or $(ARCH),$(shell uname -m)).whl

release: ## make a release of the commit HEAD: wheels, archives, SBOMs, checksums (VERSION=0.2.0)
	@scripts/install-deps.sh build wheel
	@scripts/release.sh $(VERSION)

fuzz: ## run each fuzz target for T seconds (T=60)
	@scripts/install-deps.sh build test
	@scripts/fuzz.sh $(T)

soak: ## kill and damage publishers, followers, stores, a training loop, ROUNDS rounds (500)
	@scripts/install-deps.sh build test servers
	@scripts/soak.sh $(ROUNDS)

# Configured anew because the prefix is written into deltawire.pc.
install: configure ## install under PREFIX (/usr/local), below DESTDIR
	@cmake -B build -DCMAKE_INSTALL_PREFIX=$(PREFIX)
	@cmake --build build -j $(JOBS)
	@DESTDIR=$(DESTDIR) cmake --install build
	@[ -n '$(DESTDIR)' ] || [ "$$(id -u)" -ne 0 ] || ldconfig # so that programs find the library

format: ## clang-format every C file in place
	@git ls-files -z -co --exclude-standard '*.[ch]' | xargs -0 clang-format -i

lint: configure ## clang-tidy and shellcheck, those of them that are installed
	@scripts/lint.sh $(FILES)

clean: ## remove everything that was built
	@rm -rf build build-asan build-tsan build-fuzz build-neon build-python build-wheel build-release

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

.PHONY: all configure deps package wheel release test test-deploy test-gpu test-peers demo demo-hosts demo-core demo-trl \
	bench bench-gpu bench-sync bench-pause bench-python bench-quantised fuzz soak install format lint clean help
