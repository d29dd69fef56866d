# The entry points. Everything is done by CMake and the scripts of tools/.
.PHONY: help quickstart test build build-cuda configure format lint bench deps python-env
JOBS ?= $(shell nproc)

help:
	@echo "make quickstart   install, build, fetch 20,000 proteins, train a model on them, compare, export (some 10 minutes)"
	@echo "make test         everything a change must pass"
	@echo "make build        build/cpu/bin/cistron;  make build-cuda: build/cuda/bin/cistron (needs nvcc)"
	@echo "make format lint  clang-format in place; clang-tidy and a format check, warnings are errors"
	@echo "make bench        time training against Hugging Face on this machine's cores"

quickstart:
	tools/quickstart

deps:
	tools/install-deps

python-env: deps
	tools/python-env

build: deps
	cmake --preset cpu
	cmake --build --preset cpu -j $(JOBS)

build-cuda: deps
	cmake --preset cuda
	cmake --build --preset cuda -j $(JOBS)

# Where there is a CUDA compiler, the CUDA backend must at least compile.
test: python-env
	cmake --preset cpu -DCISTRON_WERROR=ON
	cmake --build --preset cpu -j $(JOBS)
ifneq ($(shell command -v nvcc),)
	cmake --preset cuda -DCISTRON_WERROR=ON
	cmake --build --preset cuda -j $(JOBS)
endif
	ctest --test-dir build/cpu --output-on-failure -j $(JOBS)

format:
	tools/lint --format

lint: deps
	cmake --preset cpu
	tools/lint

bench: build python-env
	bench/train/compare.sh
