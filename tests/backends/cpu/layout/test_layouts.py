"""Opaque layouts: their size follows from id, type and shape, and nothing reads or writes outside of it."""

import itertools

import numpy as np
import pytest

import graphpool as gp
from graphpool._kernels.core import _dispatch
from graphpool._kernels.gemm import packed
from graphpool.backends.cpu.layout.opaque import BACKEND_ID, ISAS, PADDED_ROWS, layout_id_of
from graphpool.backends.cpu.layout.packed import MatrixWeights
from graphpool.typing import DataType, dense_strides
from tests.helpers.guarded import Guarded

PANELS = [layout_id_of(MatrixWeights.of(DataType.F32, (3, 5), turned, "f32")) for turned in (False, True)]
KINDS = [(PANELS[0] & ~(15 << 4) & ((1 << 18) - 1)) | kind << 4 for kind in range(1, 9)]
"""Ids of every kind of layout, of this instruction set and version, without what the kind needs beside them."""

HOSTILE_IDS = [0, 1, BACKEND_ID, *(PADDED_ROWS + step for step in (-1, 1, 16)), 2**63, 2**64 - 1, *KINDS,
               *(panels + step for panels in PANELS for step in (-16, 1, 16, 16 << 8, 16 << 20))]  # fmt: skip
SHAPES = [(), (7,), (3, 5), (4, 0), (1, 33), (2, 3, 5)]


@pytest.fixture(scope="module")
def engine():
    with gp.Engine(threads=1, memory_limit=64 << 20) as engine:
        yield engine


def opaque(number, shape, layout_id=PADDED_ROWS, dtype="f32"):
    return gp.LogicalTensor(number, dtype, shape, layout="opaque", layout_id=layout_id)


def test_sizes_follow_from_the_layout():
    assert opaque(0, (1024, 4100)).nbytes == 1024 * 16448
    assert opaque(0, (3, 2, 5), dtype="s8").nbytes == 6 * 64
    assert opaque(0, (3, 0)).nbytes == opaque(0, (0, 3)).nbytes == 0
    lanes = packed.lanes_of(None)
    assert opaque(0, (5, lanes + 1), PANELS[0]).nbytes >= 5 * (lanes + 1) * 4
    assert opaque(0, (lanes + 1, 5), PANELS[1]).nbytes == opaque(0, (5, lanes + 1), PANELS[0]).nbytes


def test_nobody_says_a_size():
    with pytest.raises(TypeError, match="nbytes"):
        gp.LogicalTensor(0, "f32", (4, 5), layout="opaque", layout_id=PADDED_ROWS, nbytes=64)
    with pytest.raises(TypeError, match="nbytes"):
        opaque(0, (4, 5)).replace(nbytes=64)


@pytest.mark.parametrize(("layout_id", "shape", "dtype"), [
    (PADDED_ROWS, (7,), "f32"), (PADDED_ROWS, (), "f32"), (PADDED_ROWS, (4, 4), "s4"), (PADDED_ROWS, (4, 4), "undef"),
    (PADDED_ROWS, (2**58, 1), "f32"), (PADDED_ROWS, (2**57, 1, 1), "s8"), (PADDED_ROWS + 16, (4, 4), "f32"),
    (PANELS[0], (4,), "f32"), (PANELS[0], (2, 4, 4), "f32"), (PANELS[0], (4, 4), "s8"), (PANELS[0], (0, 4), "f32"),
    (PANELS[0] + (1 << 14), (4, 4), "f32"),
    (PANELS[0] + (1 << 40), (4, 4), "f32"), (999, (4, 4), "f32"), (0, (4, 4), "f32"), (2**64 - 1, (4, 4), "f32"),
])  # fmt: skip
def test_layouts_of_nobody(engine, layout_id, shape, dtype):
    tensor = opaque(3, shape, layout_id, dtype)
    with pytest.raises(gp.InvalidArgumentError, match="tensor 3: layout id"):
        tensor.nbytes  # noqa: B018
    with pytest.raises(gp.InvalidArgumentError, match="tensor 3: layout id"):
        gp.Tensor(tensor, engine)


def test_weights_of_another_instruction_set_are_refused_by_name():
    own = _dispatch.isas()[-1]
    for number, other in enumerate(ISAS):
        foreign = PANELS[0] + ((number - ISAS.index(own)) << 8)
        if other == own:
            assert foreign == PANELS[0]
            continue
        with pytest.raises(
            gp.InvalidArgumentError, match=rf"accepted: {own}; got: {other}; .*GRAPHPOOL_MAX_ISA={other}"
        ):
            opaque(0, (4, 4), foreign).nbytes  # noqa: B018
    with pytest.raises(gp.InvalidArgumentError, match="got: unknown"):
        opaque(0, (4, 4), PANELS[0] | 15 << 8).nbytes  # noqa: B018


def test_random_ids_have_a_size_or_are_refused(engine):
    """Whatever an id says: a size within bounds that packing and unpacking keep to, or an error that is typed."""
    rng, ran = np.random.default_rng(0), 0
    shapes = [(3, 5), (17,), (8, 3, 3), (4, 1, 3, 3), (6, 2, 2, 3), (16, 16, 3, 3), (2, 3, 1, 2, 2)]
    plausible = [(3, 8), (2, 4), (1, 2), (24, 9)], [(2, 4), (1, 2), (7, 4), (7, 3), (7, 3), (20, 5)]
    for step in range(1500):
        shape, dtype = shapes[rng.integers(len(shapes))], rng.choice(["f32", "bf16", "s8", "u8", "f16"])
        fields, at = int(rng.integers(0, 2 ** int(rng.integers(1, 47)), dtype=np.uint64)), 0
        base = KINDS[rng.integers(1, len(KINDS))]
        if step % 2:  # what some convolution could have
            base, fields = KINDS[1 + rng.integers(1, 3)], 0
            for bits, most in plausible[(base >> 4 & 15) - 3]:
                fields |= int(rng.integers(most)) << at
                at += bits
        target = opaque(1, shape, base | fields << 18, dtype)
        ran += run_guarded(engine, "Reorder", [gp.LogicalTensor(0, dtype, shape)], [target])
        ran += run_guarded(engine, "Reorder", [target.replace(id=0)], [gp.LogicalTensor(1, dtype, shape)])
    assert ran > 30


def guarded_tensor(lt, engine, rng):
    """A tensor between guard bytes, its content small numbers."""
    guarded = Guarded(-(-lt.nbytes // 64) * 64)  # whole lines, so that the end of the tensor is not aligned by chance
    guarded.bytes[:] = rng.integers(0, 2, guarded.bytes.size)
    guarded.bytes[lt.nbytes :] = 0xA5
    data = guarded.bytes[: lt.nbytes]
    if lt.layout == "strided":
        itemsize = lt.dtype.bits // 8
        data = np.ndarray(lt.shape, lt.dtype.numpy, data, strides=[stride * itemsize for stride in lt.strides])
    return gp.Tensor(lt, engine, data), guarded


def run_guarded(engine, kind, inputs, outputs, **attrs):
    """Compile and run an op between guards; whether that is allowed."""
    rng = np.random.default_rng(0)
    op = gp.Op(0, kind, [t.replace(layout="strided") for t in inputs], [t.replace(layout="strided") for t in outputs],
               **attrs)  # fmt: skip
    try:
        compiled = gp.Partition.from_op(op).compile(inputs, outputs, engine)
    except gp.GraphpoolError:
        return False
    with compiled:
        bound = [guarded_tensor(lt, engine, rng) for lt in (*compiled.inputs, *compiled.outputs)]
        tensors = [tensor for tensor, _ in bound]
        compiled.execute(gp.Stream(engine), tensors[: len(inputs)], tensors[len(inputs) :])
        for tensor, guarded in bound:
            guarded.array(np.uint8, (-1,))
            assert (guarded.bytes[tensor.nbytes :] == 0xA5).all()
    return True


def layouts(number, shape, dtype):
    """A tensor in every layout there is."""
    yield gp.LogicalTensor(number, dtype, shape)
    yield gp.LogicalTensor(number, dtype, shape, strides=[3 * step for step in dense_strides(shape)])
    yield gp.LogicalTensor(number, dtype, shape, layout="any")
    yield gp.LogicalTensor(number, dtype, shape, layout="any", property="constant")
    for layout_id in (PADDED_ROWS, *PANELS):
        yield opaque(number, shape, layout_id, dtype)


def pairs(shape, out, dtype):
    """A source and a target in all layouts there are, and one of them in a layout that nobody gave out."""
    yield from itertools.product(layouts(0, shape, dtype), layouts(1, out, dtype))
    for layout_id in HOSTILE_IDS:
        yield opaque(0, shape, layout_id, dtype), gp.LogicalTensor(1, dtype, out)
        yield gp.LogicalTensor(0, dtype, shape), opaque(1, out, layout_id, dtype)


UNARY = [("Reorder", "f32", {}), ("Reorder", "bf16", {}), ("ReLU", "bf16", {}),
         ("StaticTranspose", "f32", {"order": (1, 0)}),
         ("ReduceSum", "f32", {"axes": (0,), "keep_dims": True})]  # fmt: skip


@pytest.mark.parametrize(("kind", "dtype", "attrs"), UNARY)
def test_nothing_is_touched_outside_of_claimed_layouts(engine, kind, dtype, attrs):
    ran = 0
    for shape in SHAPES:
        out = {"StaticTranspose": shape[::-1], "ReduceSum": (1, *shape[1:])}.get(kind, shape)
        for source, target in pairs(shape, out, dtype):
            ran += run_guarded(engine, kind, [source], [target], **attrs)
    assert ran > 20


@pytest.mark.parametrize("transpose_b", [False, True])
def test_products_read_weights_in_claimed_layouts_only(engine, transpose_b):
    ran = 0
    for m, k, n in [(1, 3, 5), (5, 16, 33), (4, 0, 3), (2, 3, 0)]:
        for a, b in itertools.product(layouts(0, (m, k), "f32"), layouts(1, (n, k) if transpose_b else (k, n), "f32")):
            for y in (gp.LogicalTensor(2, "f32", (m, n)), gp.LogicalTensor(2, "f32", (m, n), layout="any")):
                ran += run_guarded(engine, "MatMul", [a, b], [y], transpose_b=transpose_b)
    assert ran > 20


def test_chains_of_opaque_layouts_keep_the_values(engine):
    rng, stream = np.random.default_rng(0), gp.Stream(engine)
    x = rng.standard_normal((9, 21)).astype(np.float32)
    for first, second in [(PADDED_ROWS, PANELS[0]), (PANELS[1], PADDED_ROWS), (PADDED_ROWS,) * 2, PANELS[:1] * 2]:
        chain = [gp.LogicalTensor(0, "f32", x.shape), opaque(1, x.shape, first), opaque(2, x.shape, second),
                 gp.LogicalTensor(3, "f32", x.shape)]  # fmt: skip
        tensor = gp.Tensor(chain[0], engine, x)
        for source, target in itertools.pairwise(chain):
            reorder = gp.Partition.from_op(gp.Op(0, "Reorder", [source], [target]))
            with reorder.compile([source], [target], engine) as compiled:
                [tensor] = compiled.execute(stream, [tensor])
        np.testing.assert_array_equal(tensor.numpy(), x)
