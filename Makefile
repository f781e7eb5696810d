PYTHON ?= .venv/bin/python

build: ; ./run setup dev
test: ; ./run test
smoke: ; ./run demo
lint: build ; $(PYTHON) -m ruff check . && $(PYTHON) -m ruff format --check . && $(PYTHON) -m cython_lint graphpool
types: build ; $(PYTHON) -m mypy
bench: ; ./run bench
test-neon: build ; $(PYTHON) tools/test_neon.py
test-freethreaded: ; $(PYTHON) tools/test_freethreaded.py $(PYTHON)
test-asan: build ; $(PYTHON) tools/test_sanitizers.py address
test-ubsan: build ; $(PYTHON) tools/test_sanitizers.py undefined
test-tsan: build ; $(PYTHON) tools/test_sanitizers.py thread
test-packaging: build ; $(PYTHON) tools/test_packaging.py
test-platforms: build ; $(PYTHON) tools/test_platforms.py
soak: build ; $(PYTHON) -m tests.helpers.soak --seconds 600
docs: build ; $(PYTHON) -m sphinx -W -q docs docs/_build/html

.PHONY: build test smoke lint types bench test-neon test-freethreaded test-asan test-ubsan test-tsan test-packaging
.PHONY: test-platforms soak docs
