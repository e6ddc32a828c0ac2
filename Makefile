# weir's commands. CMake and Ninja do the work; this file only knows their arguments.
#   V=1      show every command
#   JOBS=N   compile with N processes and test with N (default: all processors; two tests at a time)
BUILD   ?= build
JOBS    ?= $(shell nproc 2>/dev/null || echo 2)
REPEAT  ?= 3
SECONDS_EACH ?= 60

ifeq ($(origin JOBS),file)
TEST_JOBS := 2
else
TEST_JOBS := $(JOBS)
endif
Q := $(if $(filter 1,$(V)),,@)
NINJA = ninja -j $(JOBS) $(if $(filter 1,$(V)),-v) -C
CTEST = ctest --output-on-failure -j$(TEST_JOBS) $(if $(filter 1,$(V)),-V) --test-dir

SOURCES = $(shell find src tests bench -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')

.PHONY: build setup run test check-asan check-tsan equality fuzz bench cuda-bench format check-format clean help
.NOTPARALLEL:

build: $(BUILD)/build.ninja  ## the program, at build/weir
	$(Q)$(NINJA) $(BUILD) weir

setup:  ## install what is missing (Debian 12, Ubuntu 24.04)
	$(Q)tools/setup.sh

run: setup build  ## chat with the built-in model; a short tour when there is no terminal
	$(Q)if [ -t 0 ] && [ -t 1 ]; then $(BUILD)/weir run; else $(BUILD)/weir tour; fi

test: setup $(BUILD)/build.ninja  ## build and run every test
	$(Q)$(NINJA) $(BUILD)
	$(Q)$(CTEST) $(BUILD)

check-asan: build-asan/build.ninja  ## the tests under AddressSanitizer and UndefinedBehaviorSanitizer
	$(Q)$(NINJA) build-asan
	$(Q)UBSAN_OPTIONS=print_stacktrace=1 $(CTEST) build-asan

# ThreadSanitizer needs the address space as its shadow expects it, which some kernels' randomisation breaks.
check-tsan: build-tsan/build.ninja  ## the tests under ThreadSanitizer
	$(Q)$(NINJA) build-tsan
	$(Q)$$(setarch -R true 2>/dev/null && echo setarch -R) $(CTEST) build-tsan

equality: setup $(BUILD)/build.ninja  ## the whole tests of exact equality, REPEAT times, in random order (hours)
	$(Q)$(NINJA) $(BUILD)
	$(Q)WEIR_EQUALITY=full GTEST_REPEAT=$(REPEAT) GTEST_SHUFFLE=1 $(CTEST) $(BUILD) -R 'equality|golden|purity'

fuzz:  ## the fuzz targets, SECONDS_EACH seconds each, with the parsers' line coverage
	$(Q)tools/setup.sh fuzz
	$(Q)JOBS=$(JOBS) tools/fuzz.sh $(SECONDS_EACH)

bench: setup $(BUILD)/build.ninja  ## build and run the benches of the ops (some minutes)
	$(Q)$(NINJA) $(BUILD) benches
	$(Q)set -e; for bench in $$(find $(BUILD) -maxdepth 1 -name '*_bench' ! -name '*_cuda_bench' ! -name step_bench ! -name tokenizer_bench | sort); do \
		echo "== $${bench##*/}"; $$bench; done; \
	echo "not run, since they want a model: $(BUILD)/step_bench MODEL [threads] [f32|f16], $(BUILD)/tokenizer_bench FOLDER"

cuda-bench: setup $(BUILD)/build.ninja  ## the same for the ops' kernels on a GPU, as JSON lines for bench/cuda_table.py
	$(Q)$(NINJA) $(BUILD) cuda_benches
	$(Q)set -e; for bench in $$(find $(BUILD) -maxdepth 1 -name '*_cuda_bench' | sort); do $$bench; done

format:  ## lay out all sources
	$(Q)tools/setup.sh format
	$(Q)clang-format -i $(SOURCES)

check-format:  ## fail when a source is not laid out
	$(Q)tools/setup.sh format
	$(Q)clang-format --dry-run -Werror $(SOURCES)

clean:  ## remove what was built
	$(Q)rm -rf build build-asan build-tsan build-fuzz

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

$(BUILD)/build.ninja:
	$(Q)tools/setup.sh
	$(Q)cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release

build-asan/build.ninja:
	$(Q)tools/setup.sh
	$(Q)cmake -S . -B build-asan -G Ninja -DCMAKE_BUILD_TYPE=Release -DWEIR_SANITIZE=address,undefined

build-tsan/build.ninja:
	$(Q)tools/setup.sh
	$(Q)cmake -S . -B build-tsan -G Ninja -DCMAKE_BUILD_TYPE=Release -DWEIR_SANITIZE=thread
