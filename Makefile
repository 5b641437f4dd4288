# The task runner. `make run` and `make test` work from a fresh clone on Debian 12.
BUILD := build
JOBS := $(shell nproc)

.PHONY: help setup build run test full fuzz cuda format check clean

help:
	@echo "make run     set up, build, ask the embedded model two questions"
	@echo "make test    set up, build, run the quick tests"
	@echo "make full    sanitizers, fuzzing 30 s a target, determinism (tier full)"
	@echo "make cuda    compile the CUDA backend (nvcc; no GPU needed)"
	@echo "make check   layers, formatting, docs/status.md"
	@echo "make format  clang-format in place"

setup:
	@tools/setup.sh

$(BUILD)/build.ninja: CMakeLists.txt CMakePresets.json | setup
	@cmake --preset release >$(BUILD).configure.log 2>&1 || { cat $(BUILD).configure.log; exit 1; }
	@rm -f $(BUILD).configure.log

build: setup $(BUILD)/build.ninja
	@ninja -C $(BUILD) -j$(JOBS)

build-program: setup $(BUILD)/build.ninja
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
