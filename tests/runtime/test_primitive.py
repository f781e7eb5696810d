"""The seed's design: pools reserved with the cached primitive, returned at close, freed by eviction."""

import numpy as np
import pytest

import graphpool as gp
from graphpool.cache import primitive_cache, set_primitive_cache_capacity
from tests.helpers.memory import run_threads


@pytest.fixture
def engine():
    primitive_cache().clear()
    with gp.Engine(threads=1) as engine:
        yield engine
    set_primitive_cache_capacity(1024)


def matmul(engine, rows=4, *, depth=16, first_id=0, name=None, **options):
    """A compiled product of (rows, depth) and (depth, 8), its tensors numbered from `first_id`."""
    x, w, y = (
        gp.LogicalTensor(first_id + k, "f32", shape) for k, shape in enumerate([(rows, depth), (depth, 8), (rows, 8)])
    )
    partition = gp.Partition.from_op(gp.Op(first_id, "MatMul", [x, w], [y], name=name))
    return partition.compile([x, w], [y], engine, **options)


def run(compiled, engine):
    arrays = [np.full(lt.shape, k + 1, np.float32) for k, lt in enumerate(compiled.inputs)]
    tensors = [gp.Tensor(lt, engine, a) for lt, a in zip(compiled.inputs, arrays, strict=True)]
    [result] = compiled.execute(gp.Stream(engine), tensors)
    return result.numpy()


def test_equal_structures_share_whatever_their_ids_and_names(engine):
    with matmul(engine) as a, matmul(engine, first_id=70, name="other") as b, matmul(engine, rows=5) as c:
        assert a.primitive is b.primitive
        assert a.primitive is not c.primitive
        assert b.step_ops == (70,)
        assert (run(a, engine) == 32).all()
        assert (run(b, engine) == 32).all()


def test_attributes_dtypes_constants_threads_and_contexts_do_not_share(engine):
    x, y = gp.LogicalTensor(0, "f32", (4, 4)), gp.LogicalTensor(1, "f32", (4, 4))

    def compiled(on, source=x, **attrs):
        partition = gp.Partition.from_op(gp.Op(0, "Elu", [source], [y.replace(dtype=source.dtype)], **attrs))
        with partition.compile([source], [y.replace(dtype=source.dtype)], on) as made:
            return made.primitive

    with gp.Engine(threads=2) as two, gp.Engine(threads=1, context="b") as other, gp.Engine(threads=1) as equal:
        base = compiled(engine, alpha=1.0)
        assert compiled(equal, alpha=1.0) is base
        others = [
            compiled(engine, alpha=2.0),
            compiled(engine, x.replace(dtype="bf16"), alpha=1.0),
            compiled(engine, x.replace(property="constant"), alpha=1.0),
            compiled(engine, x.replace(strides=(8, 1)), alpha=1.0),
            compiled(two, alpha=1.0),
            compiled(other, alpha=1.0),
        ]
    assert len({id(primitive) for primitive in (base, *others)}) == 7


def test_the_next_user_allocates_nothing(engine):
    matmul(engine).close()
    before = engine.stats()
    assert before.current_nbytes > 0
    for _ in range(5):
        with matmul(engine) as compiled:
            stats = compiled.stats()
            assert (stats.arenas, stats.reserved) == (1, 1)
    assert engine.stats() == before


def test_every_compiled_partition_reserves_a_pool(engine):
    made = [matmul(engine) for _ in range(3)]
    assert made[0].stats().arenas == 3
    made.pop().close()
    assert (made[0].stats().reserved, made[0].stats().arenas) == (2, 3)
    assert engine.trim() == made[0].scratchpad_nbytes
    for compiled in made:
        compiled.close()


def test_eviction_frees_idle_memory(engine):
    set_primitive_cache_capacity(2)
    for rows in range(3, 9):
        matmul(engine, rows).close()
    kept = {compiled.scratchpad_nbytes for compiled in (matmul(engine, 7), matmul(engine, 8)) if not compiled.close()}
    assert engine.stats().current_nbytes == sum(matmul_nbytes(engine, rows) for rows in (7, 8))
    assert kept
    set_primitive_cache_capacity(0)
    assert engine.stats().current_nbytes == 0


def matmul_nbytes(engine, rows):
    """Scratch of a product, without leaving a trace in the primitive cache's order that matters here."""
    with matmul(engine, rows, scratch="none") as compiled:
        return compiled.scratchpad_nbytes


def test_eviction_of_a_primitive_in_use_waits_for_its_last_user(engine):
    with matmul(engine) as compiled:
        primitive_cache().clear()
        assert (run(compiled, engine) == 32).all()
        assert engine.stats().current_nbytes >= compiled.scratchpad_nbytes
    assert engine.stats().current_nbytes == 0


def test_capacity_zero_still_works(engine):
    set_primitive_cache_capacity(0)
    with matmul(engine) as a, matmul(engine) as b:
        assert a.primitive is not b.primitive
        assert (run(a, engine) == 32).all()
    assert engine.stats().current_nbytes == 0


def test_shared_arenas_are_as_many_as_runs_and_as_large_as_the_largest(engine):
    small, large = matmul(engine, scratch="shared"), matmul(engine, depth=64, scratch="shared")
    assert engine.stats().current_nbytes == 0
    for compiled, expected in ((small, 32), (large, 128), (small, 32)):
        assert (run(compiled, engine) == expected).all()
    assert engine.stats().current_nbytes == large.scratchpad_nbytes > small.scratchpad_nbytes
    assert engine.trim() == large.scratchpad_nbytes
    small.close()
    large.close()


def test_scratch_none_allocates_at_every_run(engine):
    with matmul(engine, scratch="none") as compiled:
        before = engine.stats()
        assert before.current_nbytes == 0
        for _ in range(3):
            assert (run(compiled, engine) == 32).all()
        assert engine.stats().current_nbytes == 0
        assert engine.stats().total_count - before.total_count >= 6


def test_scratch_is_checked(engine):
    with pytest.raises(gp.InvalidArgumentError, match="accepted: primitive, shared, none, caller; got: 'pool'"):
        matmul(engine, scratch="pool")


def test_many_threads_compile_run_and_close_while_the_capacity_changes(engine):
    def change_capacity():
        for capacity in (1, 3, 0, 5, 2) * 8:
            set_primitive_cache_capacity(capacity)

    def compile_and_run(seed):
        rng = np.random.default_rng(seed)
        for _ in range(40):
            with matmul(engine, int(rng.integers(1, 6)), scratch=str(rng.choice(["primitive", "shared"]))) as compiled:
                assert (run(compiled, engine) == 32).all()

    run_threads(7, lambda i: compile_and_run(i) if i < 6 else change_capacity())
    set_primitive_cache_capacity(0)
    engine.trim()
    assert engine.stats().current_nbytes == 0
