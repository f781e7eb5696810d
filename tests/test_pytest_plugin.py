"""The fixtures and the marker that pytest finds in graphpool, in sessions of their own."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

import graphpool as gp
from graphpool.pytest_plugin import PeakRecorder
from tests.helpers.tree import ROOT

pytest_plugins = ["pytester"]


OPTIONS = ("-p", "graphpool.pytest_plugin", "-p", "no:cacheprovider")


@pytest.fixture
def run(pytester, monkeypatch):
    """Runs tests with the plug-in in a process of its own, for a session forgets the modules that it imported."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run_tests(text):
        pytester.makepyfile(text)
        return pytester.runpytest_subprocess(*OPTIONS)

    return run_tests


@pytest.fixture
def refuse(pytester):
    """Collects tests that are refused before they need more of graphpool, and gives the result."""

    def collect(text):
        pytester.makepyfile(text)
        result = pytester.runpytest_inprocess(*OPTIONS)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        return result

    return collect


def test_fixtures_give_an_engine_its_stream_and_its_peak(run):
    result = run(
        """
        import pytest

        def test_all(gp_engine, gp_stream, gp_footprint):
            with gp_footprint() as whole:
                gp_engine.budget.charge(1000)
                with gp_footprint() as inner:
                    gp_engine.budget.charge(500)
                    gp_engine.budget.uncharge(1500)
                with gp_footprint() as idle:
                    pass
            assert (whole.before_nbytes, whole.peak_nbytes, whole.after_nbytes) == (0, 1500, 0)
            assert (inner.before_nbytes, inner.peak_nbytes, idle.peak_nbytes) == (1000, 1500, 0)
            assert gp_engine.budget.peak == 1500

        @pytest.mark.parametrize("gp_engine", [{"threads": 1, "memory_limit": "1MiB"}], indirect=True)
        def test_arguments(gp_engine):
            assert (gp_engine.threads, gp_engine.memory_limit) == (1, 2**20)
        """
    )
    result.assert_outcomes(passed=2)


def test_a_peak_above_the_limit_fails_the_test_by_name(run):
    result = run(
        """
        import pytest

        @pytest.mark.limit_footprint("1KiB")
        @pytest.mark.parametrize("nbytes", [1024, 1025])
        def test_charge(gp_engine, gp_footprint, nbytes):
            with gp_footprint():
                gp_engine.budget.charge(nbytes)
                gp_engine.budget.uncharge(nbytes)
        """
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*test_charge?1025? took * (1025 bytes) of gp_engine at once, more*(1024 bytes)"])


def test_memory_in_use_behind_the_engine_is_an_error(run):
    result = run(
        """
        import numpy as np
        import graphpool as gp

        kept = []

        def test_tensor(gp_engine):
            kept.append(gp.Tensor(gp.LogicalTensor(0, "f32", (256,)), gp_engine))

        def test_failure(gp_engine):
            tensor = gp.Tensor(gp.LogicalTensor(0, "f32", (256,)), gp_engine)
            assert tensor is None

        def test_no_leak(gp_engine):
            tensor = gp.Tensor(gp.LogicalTensor(0, "f32", (256,)), gp_engine)
        """
    )
    result.assert_outcomes(passed=2, failed=1, errors=1)
    result.stdout.fnmatch_lines(["*test_tensor leaks * (1024 bytes) of gp_engine (tensors *"])


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ('"300 parrots"', "*test_it: limit_footprint: not a size*300 parrots*"),
        ("", "*test_it: limit_footprint takes one size*"),
        ("1, 2", "*test_it: limit_footprint takes one size*"),
        ("nbytes=1", "*test_it: limit_footprint takes one size*"),
    ],
)
def test_a_malformed_limit_is_a_usage_error(refuse, marker, message):
    result = refuse(f"import pytest\n\n@pytest.mark.limit_footprint({marker})\ndef test_it(gp_engine):\n    pass\n")
    result.stderr.fnmatch_lines([message])


def test_a_limit_of_nothing_is_a_usage_error(refuse):
    result = refuse("import pytest\n\n@pytest.mark.limit_footprint(1)\ndef test_it():\n    pass\n")
    result.stderr.fnmatch_lines(["*test_it: limit_footprint counts the memory of gp_engine, which*"])


def test_a_recorder_shows_what_it_found():
    with gp.Engine() as engine, PeakRecorder(engine) as recorder:
        engine.budget.charge(2**20)
        engine.budget.uncharge(2**20)
    assert repr(recorder) == "PeakRecorder(1.000 MiB (1048576 bytes) at most, 0.000 MiB (0 bytes) in the end)"


def test_pytest_finds_the_plugin_by_its_entry_point():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"graphpool.pytest_plugin": "graphpool.pytest_plugin"}


def test_tests_without_graphpool_import_nothing_of_it():
    code = "import sys, graphpool.pytest_plugin; print([n for n in ('numpy', 'graphpool.runtime') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_example_of_the_page_passes(run):
    page = (ROOT / "docs" / "how-to" / "test-memory.md").read_text()
    result = run(page.split("```python\n")[1].split("```")[0])
    result.assert_outcomes(passed=3)
