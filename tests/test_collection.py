import gc
import os
import subprocess
import sys
import threading

import pytest

import graphpool as gp
from graphpool._collection import collection_paused
from tests.helpers.onnx_models import node_model, random_array


@pytest.fixture(autouse=True)
def collector():
    yield
    gc.enable()


def test_the_collector_pauses_and_goes_on():
    assert gc.isenabled()
    with collection_paused():
        assert not gc.isenabled()
        with collection_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off():
    gc.disable()
    with collection_paused():
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_errors_end_a_pause():
    with pytest.raises(ZeroDivisionError), collection_paused(), collection_paused():
        raise ZeroDivisionError
    assert gc.isenabled()


def test_the_last_of_several_threads_ends_the_pause():
    inside, leave = threading.Barrier(3), [threading.Event() for _ in range(2)]

    def pause(number):
        with collection_paused():
            inside.wait()
            leave[number].wait()

    threads = [threading.Thread(target=pause, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    inside.wait()
    for thread, event, is_on in zip(threads, leave, (False, True), strict=True):
        event.set()
        thread.join()
        assert gc.isenabled() is is_on


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_collects():
    with collection_paused():
        child = os.fork()
        if child == 0:
            os._exit(0 if gc.isenabled() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not gc.isenabled()
    assert gc.isenabled()


def test_loading_and_specialising_pause_and_let_go(monkeypatch):
    seen = []
    compile_ = gp.graph.partition.Partition.compile
    monkeypatch.setattr(
        gp.graph.partition.Partition, "compile",
        lambda *args, **options: (seen.append(gc.isenabled()), compile_(*args, **options))[1],
    )  # fmt: skip
    model, feeds = node_model("Relu", [random_array((3, 4))])
    with gp.onnx.load(model) as loaded:
        assert seen == [False]
        assert gc.isenabled()
        loaded.run(feeds)
        assert gc.isenabled()


SETTLE = """
import gc, weakref
from graphpool._collection import collection_paused, settle_objects

class Node:
    pass

def generations(wanted):
    return [k for k in range(3) if any(item is wanted for item in gc.get_objects(generation=k))]

with collection_paused():
    node = Node()
    node.own, gone = node, weakref.ref(node)
    assert generations(node) == [0]
    settle_objects()
    assert generations(node) == [2] and gc.get_freeze_count() == 0
    del node
gc.collect()
assert gone() is None
gc.freeze()
count = gc.get_freeze_count()
settle_objects()
assert gc.get_freeze_count() == count > 0
"""


def test_objects_settle_in_the_oldest_generation_but_where_some_are_frozen():
    subprocess.run([sys.executable, "-c", SETTLE], check=True)
