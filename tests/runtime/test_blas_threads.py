"""SciPy's BLAS runs on one thread while a program with BLAS steps runs, and has the user's setting afterwards."""

import os
import threading

import numpy as np
import pytest

import graphpool as gp
from graphpool import config
from graphpool.cache import constant_tensor_cache
from graphpool.runtime import blas_threads
from tests.helpers.memory import run_threads


@pytest.fixture
def library():
    [library, *_] = blas_threads._libraries()
    before = library.get_num_threads()
    library.set_num_threads(2)
    yield library
    library.set_num_threads(before)


def test_nested_programs_restore_at_the_end(library):
    blas_threads.enter()
    assert library.get_num_threads() == 1
    blas_threads.enter()
    blas_threads.leave()
    assert library.get_num_threads() == 1
    blas_threads.leave()
    assert library.get_num_threads() == 2


def test_a_setting_of_one_is_left_alone(library):
    library.set_num_threads(1)
    blas_threads.enter()
    blas_threads.leave()
    assert library.get_num_threads() == 1


def test_a_thread_that_does_not_control_the_library_sets_it_too(library):
    """threadpoolctl ignores every thread but the first that set a limit: here the one that made the fixture."""
    seen = []

    def work():
        blas_threads.enter()
        seen.append(library.get_num_threads())
        blas_threads.leave()
        seen.append(library.get_num_threads())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [1, 2]


def test_programs_in_many_threads_restore(library, monkeypatch):
    monkeypatch.setitem(config._values, "max_isa", "generic")  # others prefer their own loops
    shapes = (16, 512), (1024, 512), (16, 1024)
    a, b, c = (gp.LogicalTensor(i, "f32", shape) for i, shape in enumerate(shapes))
    partition = gp.Partition.from_op(gp.Op(0, "MatMul", [a, b], [c], transpose_b=True))
    with gp.Engine(threads=1) as engine, partition.compile([a, b], [c], engine) as compiled:
        assert compiled.program.uses_blas
        x, w = np.ones(shapes[0], np.float32), np.ones(shapes[1], np.float32)

        def work(_):
            stream = gp.Stream(engine)
            for _ in range(20):
                [result] = compiled.execute(stream, [gp.Tensor(a, engine, x), gp.Tensor(b, engine, w)])
                assert (result.numpy() == 512).all()

        run_threads(4, work)
    assert library.get_num_threads() == 2


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_the_users_setting(library):
    blas_threads.enter()
    try:
        child = os.fork()
        if child == 0:
            os._exit(0 if library.get_num_threads() == 2 and blas_threads._running == 0 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert library.get_num_threads() == 1
    finally:
        blas_threads.leave()


def test_blas_is_kept_to_one_thread_only_where_the_plain_kernel_runs(monkeypatch):
    entered = []
    monkeypatch.setitem(config._values, "max_isa", "generic")  # others prefer their own loops
    monkeypatch.setattr(blas_threads, "enter", lambda real=blas_threads.enter: entered.append(1) or real())
    x = gp.LogicalTensor(0, "f32", (16, 512))
    w = gp.LogicalTensor(1, "f32", (1024, 512), property="constant")
    y = gp.LogicalTensor(2, "f32", (16, 1024))
    product = gp.Partition.from_op(gp.Op(0, "MatMul", [x, w], [y], transpose_b=True))
    cache = constant_tensor_cache("cpu")
    with gp.Engine(threads=1) as engine, product.compile([x, w], [y], engine) as compiled:
        assert any("blas" in name for name in compiled.implementations)
        tensors = [gp.Tensor(lt, engine, np.ones(lt.shape, np.float32)) for lt in (x, w)]
        try:
            for capacity, expected in ((None, 0), (0, 1)):
                cache.set_capacity(capacity)
                compiled.execute(gp.Stream(engine), tensors)
                assert len(entered) == expected
        finally:
            cache.set_capacity(None)
