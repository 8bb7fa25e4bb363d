# Two environments from hash-pinned locks, and the commands of the README.
#
#   make eval      both environments, then the bundled checkpoint with jobs/smoke.yaml
#   make test      everything this machine can run; says what it skipped and why
#   make sources   the pinned benchmark source (EVALCHEMY_REPO=<url or local git directory> to take it from elsewhere)
#   make models    list anew what the installed engine can load
#   make locks     resolve the locks anew (needs the package index)
#
# The harness runs on Python 3.11 to 3.13 (PYTHON=python3.12), the CPU engine's lock is for Python 3.11 on x86-64.
# Debian 12 has 3.11 (apt-get install python3 python3-venv); elsewhere: uv python install 3.11, pyenv install 3.11,
# then make ENGINE_PYTHON=/path/to/python3.11.

PYTHON ?= $(shell command -v python3.11 >/dev/null 2>&1 && python3.11 -c 1 2>/dev/null && echo python3.11 || echo python3)
ENGINE_PYTHON ?= $(PYTHON)
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
LOCK_FLAGS ?= --extra-index-url $(TORCH_INDEX) --index-strategy unsafe-best-match
JOB ?= jobs/smoke.yaml

export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Modules are compiled when they are first imported: compiling all of them takes minutes and most are never used.
INSTALL = -m pip install -qq --no-compile --no-deps --no-build-isolation --require-hashes

.PHONY: eval test check harness engine sources models locks clean

eval: harness engine
	.venv/bin/evalcrate run $(JOB)

test: check engine
	.venv/bin/python -m pytest -n auto --maxprocesses 8 --dist worksteal tests/unit tests/flow
	.venv/bin/python -m pytest tests/engine

check: .venv/.test
	.venv/bin/ruff check . && .venv/bin/ruff format --check .
	.venv/bin/mypy

harness: .venv/.harness
engine: .venv-engine/.engine

.venv/.harness: .venv/.locked pyproject.toml
	@.venv/bin/python -m pip install -qq --no-deps --no-build-isolation --no-index -e .
	@touch $@

.venv/.locked: locks/build.txt locks/harness.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else f"make: the harness needs Python 3.11 to 3.13, $(PYTHON) is {v[0]}.{v[1]}; set PYTHON=")'
	@echo "installing the harness environment (.venv)"
	@$(PYTHON) -m venv --clear .venv
	@.venv/bin/python $(INSTALL) -r locks/build.txt
	@.venv/bin/python $(INSTALL) -r locks/harness.txt
	@touch $@

.venv/.test: .venv/.harness locks/test.txt
	@echo "installing the test tools (.venv)"
	@.venv/bin/python $(INSTALL) -r locks/test.txt
	@touch $@

# The CPU build of torch is on PyTorch's own index; where pip's settings offer it (find-links), that one is taken.
.venv-engine/.engine: locks/build.txt locks/engine-cpu.txt locks/engine-cpu-torch.txt
	@$(ENGINE_PYTHON) -c 'import platform, sys; v = sys.version_info[:2]; ok = v == (3, 11) and platform.machine() == "x86_64"; sys.exit(0 if ok else f"make: the CPU engine needs Python 3.11 on x86-64, $(ENGINE_PYTHON) is {v[0]}.{v[1]} on {platform.machine()}; see the head of the Makefile")'
	@echo "installing the engine environment (.venv-engine), some 3 GB"
	@$(ENGINE_PYTHON) -m venv --clear .venv-engine
	@.venv-engine/bin/python $(INSTALL) -r locks/build.txt
	@.venv-engine/bin/python $(INSTALL) --retries 1 --timeout 20 -r locks/engine-cpu-torch.txt 2>.venv-engine/torch.log || \
	  .venv-engine/bin/python $(INSTALL) --index-url $(TORCH_INDEX) --retries 1 --timeout 20 -r locks/engine-cpu-torch.txt || \
	  { cat .venv-engine/torch.log; echo "make: the CPU build of torch is neither offered by pip's settings nor at $(TORCH_INDEX)"; exit 1; }
	@.venv-engine/bin/python $(INSTALL) -r locks/engine-cpu.txt
	@touch $@

sources: harness
	.venv/bin/evalcrate sources

models: engine
	.venv-engine/bin/python locks/list_models.py > profiles/engine/vllm.tmp && mv profiles/engine/vllm.tmp profiles/engine/vllm.json

# torchvision, torchaudio and torchcodec are declared by the engine but not needed, and from another index than torch
# they break the import of transformers; triton (1 GB) is not needed on CPU.
UNWANTED = $(foreach p,torchvision torchaudio torchcodec triton,--no-emit-package $(p))
COMPILE = .venv-lock/bin/uv pip compile -q --generate-hashes --no-header
locks:
	$(PYTHON) -m venv --clear .venv-lock && .venv-lock/bin/pip install -qq uv
	$(COMPILE) --universal --python-version 3.11 locks/build.in -o locks/build.txt
	$(COMPILE) --universal --python-version 3.11 locks/harness.in -o locks/harness.txt
	$(COMPILE) --universal --python-version 3.11 -c locks/harness.txt locks/test.in -o locks/test.txt
	$(COMPILE) --python-version 3.11 --python-platform x86_64-manylinux_2_28 $(LOCK_FLAGS) $(UNWANTED) \
	  locks/engine-cpu.in -o .venv-lock/engine.txt
	awk '/^[a-z]/ {torch = /^torch==/} torch' .venv-lock/engine.txt > locks/engine-cpu-torch.txt
	awk '/^[a-z]/ {torch = /^torch==/} !torch' .venv-lock/engine.txt > locks/engine-cpu.txt
	rm -rf .venv-lock

clean:
	rm -rf .venv .venv-engine .venv-lock results
