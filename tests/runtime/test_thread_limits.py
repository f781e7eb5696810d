"""threadpoolctl sees and limits the threads; importing graphpool does not import it."""

import subprocess
import sys

import pytest
import threadpoolctl

import graphpool as gp
from graphpool.runtime.threads import available_threads


@pytest.fixture
def stream():
    with gp.Engine(threads=5) as engine, gp.Stream(engine) as stream:
        yield stream


def of_graphpool():
    return [info for info in threadpoolctl.threadpool_info() if info["user_api"] == "graphpool"]


@pytest.mark.native
def test_importing_graphpool_does_not_import_threadpoolctl():
    script = "import sys, graphpool; print('threadpoolctl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout == b"False\n"


def test_the_extension_is_listed_once(stream):
    gp.Stream(stream.engine).close()
    [info] = of_graphpool()
    assert info["internal_api"] == "graphpool"
    assert info["num_threads"] == available_threads()


def test_a_limit_holds_inside_its_context(stream):
    assert stream.team.roll_call(5) == 5
    with threadpoolctl.threadpool_limits(1, user_api="graphpool"):
        assert stream.team.roll_call(5) == 1
        assert of_graphpool()[0]["num_threads"] == 1
    assert stream.team.roll_call(5) == 5
