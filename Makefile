# The task runner. `make run` and `make test` work from a fresh clone on Debian 12.
BUILD := build
JOBS := $(shell nproc)

.PHONY: help setup configure build build-program run test full fuzz cuda format check clean

help:
	@echo "make run     set up, build, ask the embedded model two questions"
	@echo "make test    set up, build, run the quick tests"
	@echo "make full    sanitizers, fuzzing 30 s a target, determinism (tier full)"
	@echo "             CUDA=1 or CUDA=0 before them: with or without the CUDA backend (else: with, where a GPU is found)"
	@echo "make cuda    compile the CUDA backend (nvcc; no GPU needed)"
	@echo "make check   layers, formatting, docs/status.md"
	@echo "make format  clang-format in place"

setup:
	@tools/setup.sh

# CUDA=1 compiles the CUDA backend in, CUDA=0 keeps it out; not given: in where nvcc and a GPU are found.
configure: setup
	@tools/configure.sh $(BUILD) $(CUDA)

build: configure
	@ninja -C $(BUILD) -j$(JOBS)

build-program: configure
	@ninja -C $(BUILD) -j$(JOBS) fathom

run: build-program
	@$(BUILD)/fathom selfcheck --model models/mini-v4

test: build
	@ctest --test-dir $(BUILD) -L '^quick$$' --output-on-failure -j$(JOBS)

full: build
	@tools/run_full.sh

fuzz: setup
	@tools/run_fuzz.sh 30

cuda: setup
	@tools/build_cuda.sh

check:
	@python3 tools/check_layers.py
	@python3 tools/check_status.py
	@tools/check_format.sh

format:
	@clang-format-19 -i $$(git ls-files '*.h' '*.cc' '*.cu' '*.cuh')

clean:
	rm -rf $(BUILD) build-dev build-asan build-tsan build-fuzz build-cuda
