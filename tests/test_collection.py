import gc
import os
import subprocess
import sys
import threading
import types

import pytest
from onnx import helper

import graphpool as gp
from graphpool._collection import collection_paused
from graphpool.graph.partition import Partition
from tests.helpers.onnx_models import make_model, node_model, random_array


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
    compile_ = Partition.compile
    monkeypatch.setattr(
        Partition, "compile",
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


def left_to_the_collector(work):
    """What of the library's is in cycles when something has been done, or was refused for want of memory; which."""
    is_refused = False
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        work()
    except gp.OutOfMemoryError:
        is_refused = True
    finally:
        gc.collect()
        gc.set_debug(0)
    names = {type(found).__name__ for found in gc.garbage}
    names |= {found.__qualname__ for found in gc.garbage if isinstance(found, types.FunctionType)}
    gc.garbage.clear()
    return names & {
        "OutOfMemoryError",
        "Executable",
        "Op",
        "frame",
        "_Expression.__call__.<locals>.content_of",
    }, is_refused


def test_what_is_refused_leaves_nothing_to_the_collector():
    x, limits = random_array((64, 256)), {"memory_limit": "40KiB", "threads": 1}
    roomier = limits | {"memory_limit": "264KiB"}  # for the weights alone
    product, constants = [helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": random_array((256, 256))}
    fixed = make_model(product, {"x": x}, ["y"], constants)
    free = make_model(product, {"x": x}, ["y"], constants, shapes={"x": ("n", 256)})
    assert left_to_the_collector(lambda: gp.onnx.load(free, **limits)) == (set(), True)
    with gp.onnx.load(free, **roomier) as model:
        assert left_to_the_collector(lambda: model.run({"x": x})) == (set(), True)
    assert left_to_the_collector(lambda: gp.onnx.load(fixed, **limits)) == (set(), True)
    assert left_to_the_collector(lambda: gp.onnx.load(free, shapes={"n": (1, 64)}, **limits)) == (set(), True)
    computed = make_model([helper.make_node("Exp", ["w"], ["e"]), helper.make_node("Add", ["x", "e"], ["y"])],
                          {"x": x}, ["y"], {"w": x})  # fmt: skip
    assert left_to_the_collector(lambda: gp.onnx.load(computed, **limits)) == (set(), True)
    assert left_to_the_collector(lambda: gp.onnx.load(computed, threads=1).close()) == (set(), False)
