"""The compiled-partition cache: who shares, who does not, and that a hit is as good as a compilation."""

import gc
import weakref

import numpy as np
import pytest

import graphpool as gp
from graphpool.cache import compiled_partition_cache, primitive_cache
from tests.helpers.memory import run_threads


@pytest.fixture(autouse=True)
def cache():
    primitive_cache().clear()
    gp.set_compiled_partition_cache_capacity(1024)
    found = compiled_partition_cache()
    found.clear()
    yield found
    gp.set_compiled_partition_cache_capacity(1024)
    gp.set_primitive_cache_capacity(1024)


def ports(first=0, rows=4, **keywords):
    shapes = [(rows, 16), (16, 8), (rows, 8)]
    return [gp.LogicalTensor(first + k, "f32", shape, **keywords) for k, shape in enumerate(shapes)]


def partition_of(x, w, y, first=0, **attrs):
    return gp.Partition.from_op(gp.Op(first, "MatMul", [x, w], [y], **attrs))


def product(compiled, engine):
    """Whether an execution by id gives the product."""
    rng = np.random.default_rng(0)
    arrays = {lt.id: rng.standard_normal(lt.shape).astype(np.float32) for lt in compiled.inputs}
    tensors = [gp.Tensor(lt, engine, arrays[lt.id]) for lt in compiled.inputs]
    [y] = compiled.execute(gp.Stream(engine), tensors)
    a, b = (arrays[port.id] for port in compiled.partition.input_ports)
    return np.allclose(y.numpy(), a @ b, rtol=1e-4, atol=1e-4)


def counts(cache):
    stats = cache.stats()
    return stats.hits, stats.misses, stats.entries


def test_the_same_arguments_again_hit_without_a_look_up(cache, engine):
    x, w, y = ports()
    partition = partition_of(x, w, y)
    before = counts(cache)
    made = [partition.compile([x, w], [y], engine) for _ in range(5)]
    assert tuple(np.subtract(counts(cache), before)) == (4, 1, 1)
    assert len({id(compiled) for compiled in made}) == 5
    assert made[0].stats().reserved == 5
    for compiled in made:
        assert product(compiled, engine)
        compiled.close()
        assert compiled.is_closed
    assert compiled.stats().reserved == 0


def test_a_structurally_equal_partition_hits_with_its_own_ids(cache, engine):
    before = counts(cache)
    for first in (0, 70, 500):
        x, w, y = ports(first)
        with partition_of(x, w, y, first).compile([x, w], [y], engine) as compiled:
            assert [lt.id for lt in (*compiled.inputs, *compiled.outputs)] == [first, first + 1, first + 2]
            assert compiled.step_ops == (first,)
            assert compiled.query_logical_tensor(first + 2).shape == (4, 8)
            assert product(compiled, engine)
    assert tuple(np.subtract(counts(cache), before)) == (2, 1, 1)


def test_ports_are_mapped_by_position_and_the_order_given_is_kept(cache, engine):
    for first in (0, 10):
        x, w, y = ports(first)
        partition = partition_of(x, w, y)
        with partition.compile([w, x], [y], engine) as swapped, partition.compile([x, w], [y], engine) as plain:
            assert [lt.id for lt in swapped.inputs] == [first + 1, first]
            assert [lt.id for lt in plain.inputs] == [first, first + 1]
            assert product(swapped, engine)
            assert product(plain, engine)
    assert len(cache) == 2


def test_unknown_shapes_and_free_layouts_are_settled_by_the_hit(cache, engine):
    for first in (0, 10):
        x, w, y = ports(first)
        open_ports = [w.replace(layout="any", property="constant")], [y.replace(shape=None, layout="any")]
        partition = partition_of(x, *open_ports[0], *open_ports[1])
        with partition.compile([x, *open_ports[0]], open_ports[1], engine) as compiled:
            settled = [compiled.query_logical_tensor(first + k) for k in range(3)]
            assert settled[2].shape == (4, 8)
            assert settled[1].property == "constant"
            assert all(lt.layout in ("strided", "opaque") for lt in settled)
    assert cache.stats().entries == 1


def test_what_a_compilation_depends_on_is_in_the_key(cache, engine):
    x, w, y = ports()

    def compile_(on=engine, given=((x, w), (y,)), **attrs):
        partition_of(x, w, y, **attrs).compile(*given, on).close()
        return len(cache)

    with gp.Engine(threads=2) as two, gp.Engine(threads=1, context="b") as other, gp.Engine(threads=1) as equal:
        assert compile_() == 1
        assert compile_(equal) == 1
        assert compile_(two) == 2
        assert compile_(other) == 3
        assert compile_(given=((w, x), (y,))) == 4
        assert compile_(given=((x, w.replace(property="constant")), (y,))) == 5
        assert compile_(given=((x.replace(strides=(32, 1)), w), (y,))) == 6
        assert compile_(given=((x, w), (y.replace(layout="any"),))) == 7
        graph = gp.Graph("cpu", fpmath="bf16")
        graph.add_op(gp.Op(0, "MatMul", [x, w], [y]))
        graph.finalize()
        [partition] = graph.get_partitions()
        partition.compile([x, w], [y], engine).close()
        assert len(cache) == 8


def test_capacity_bounds_entries_and_zero_disables(cache, engine):
    gp.set_compiled_partition_cache_capacity(2)
    for rows in (1, 2, 3, 1):
        x, w, y = ports(rows=rows)
        partition_of(x, w, y).compile([x, w], [y], engine).close()
        assert len(cache) <= 2
    gp.set_compiled_partition_cache_capacity(0)
    assert gp.get_compiled_partition_cache_capacity() == len(cache) == 0
    x, w, y = ports(rows=7)
    partition = partition_of(x, w, y)
    for _ in range(2):
        with partition.compile([x, w], [y], engine) as compiled:
            assert product(compiled, engine)
    assert len(cache) == 0


def test_a_hit_by_identity_keeps_form_and_primitive_young(cache, engine):
    gp.set_compiled_partition_cache_capacity(2)
    gp.set_primitive_cache_capacity(2)
    kept, *others = [ports(rows=rows) for rows in (1, 2, 3)]
    partition = partition_of(*kept)
    partition.compile(kept[:2], kept[2:], engine).close()
    for other in others:
        partition.compile(kept[:2], kept[2:], engine).close()
        partition_of(*other).compile(other[:2], other[2:], engine).close()
    before = cache.stats()
    partition.compile(kept[:2], kept[2:], engine).close()
    assert (cache.stats().hits, cache.stats().misses) == (before.hits + 1, before.misses)


def test_a_form_leaves_with_its_primitive_and_nothing_keeps_its_memory(cache, engine):
    x, w, y = ports()
    partition = partition_of(x, w, y)
    with partition.compile([x, w], [y], engine) as compiled:
        alive = weakref.ref(compiled.primitive)
    del compiled
    gp.set_primitive_cache_capacity(0)
    assert len(cache) == 0
    gc.collect()
    assert alive() is None
    assert engine.budget.in_use == 0
    gp.set_primitive_cache_capacity(8)
    with partition.compile([x, w], [y], engine) as compiled:
        assert product(compiled, engine)


def test_a_closed_engine_is_refused_though_the_partition_is_known(engine):
    x, w, y = ports()
    partition = partition_of(x, w, y)
    compiled = partition.compile([x, w], [y], engine)
    engine.close()
    assert compiled.is_closed
    with pytest.raises(gp.StateError, match="is closed; create another engine"):
        partition.compile([x, w], [y], engine)


def test_neither_cache_nor_memo_keeps_an_engine_alive(engine):
    x, w, y = ports()
    partition = partition_of(x, w, y)
    other = gp.Engine(threads=1)
    partition.compile([x, w], [y], other).close()
    alive = weakref.ref(other)
    other.close()
    del other
    gc.collect()
    assert alive() is None


def test_threads_compile_run_and_close_while_both_caches_are_resized(cache, engine):
    shapes = [ports(rows=rows) for rows in range(1, 6)]
    partitions = [partition_of(*lts) for lts in shapes]

    def work(i):
        if i == 0:
            for n in range(60):
                gp.set_compiled_partition_cache_capacity(n % 5)
                gp.set_primitive_cache_capacity((n * 3) % 4)
            return True
        good = True
        for n in range(60):
            k = (n * i) % 5
            with partitions[k].compile(shapes[k][:2], shapes[k][2:], engine) as compiled:
                good &= product(compiled, engine)
        return good

    assert all(run_threads(6, work))
    gp.set_primitive_cache_capacity(0)
    engine.trim()
    assert engine.budget.in_use == engine.stats().current_nbytes == 0


@pytest.mark.parametrize("entries", [-1, 1.5, None])
def test_the_capacity_is_checked(entries):
    with pytest.raises(gp.InvalidArgumentError):
        gp.set_compiled_partition_cache_capacity(entries)


def test_caches_keep_no_graph_that_is_gone():
    """Each load of a model has partitions of its own, which share one compiled form."""

    def live():
        with gp.Engine(threads=1) as engine:
            x, y = gp.LogicalTensor(0, "f32", (3, 5)), gp.LogicalTensor(1, "f32", (3, 5))
            partition = gp.Partition.from_op(gp.Op(0, "ReLU", [x], [y]))
            partition.compile([x], [y], engine).close()
            again = partition.compile([x], [y], engine)
            assert again.partition is partition
            again.close()
            return weakref.ref(partition)

    found = [live() for _ in range(3)]
    gc.collect()
    assert [partition() for partition in found] == [None] * 3
