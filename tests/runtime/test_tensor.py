"""Tensor: what it binds, what it refuses, what it gives back."""

import functools
import gc
import pickle
import warnings
import weakref

import ml_dtypes
import numpy as np
import pytest

import graphpool as gp


def lt(shape=(2, 3), dtype="f32", tensor_id=5, **fields):
    return gp.LogicalTensor(tensor_id, dtype, shape, **fields)


def known_descriptions(columns):
    """How many data types, shapes and layouts tensors of so many columns are known by."""
    forgetting = (x for x in gc.get_objects() if isinstance(x, functools.partial) and x.func.__name__ == "_forget")
    return sum(x.args[0][1][1:] == (columns,) for x in forgetting)


def test_descriptions_are_forgotten_with_their_last_tensor(engine):
    kept = [gp.Tensor(lt((rows, 97)), engine) for rows in range(1, 301)]
    again = gp.Tensor(lt((7, 97)), engine)
    assert known_descriptions(97) == 300
    del kept
    gc.collect()
    assert known_descriptions(97) == 1
    del again
    assert known_descriptions(97) == 0


def test_a_description_that_was_forgotten_is_found_again(engine):
    x, y = lt((4, 3), tensor_id=0), lt((4, 3), tensor_id=1)
    graph = gp.Graph("cpu")
    graph.add_op(gp.Op(0, "ReLU", [x], [y]))
    graph.finalize()
    [partition] = graph.get_partitions()
    a = np.full((4, 3), -1, np.float32)
    with partition.compile([x], [y], engine) as compiled:
        for _ in range(3):
            source, target = gp.Tensor(x, engine, a), gp.Tensor(y, engine, np.empty_like(a))
            compiled.execute(gp.Stream(engine), [source], [target])
            np.testing.assert_array_equal(target.numpy(), 0)
            with pytest.raises(gp.GraphpoolError):
                compiled.execute(gp.Stream(engine), [gp.Tensor(lt((5, 3), tensor_id=0), engine)], [target])
            del source, target
            gc.collect()


def test_shares_the_users_memory(engine):
    array = np.zeros((2, 3), np.float32)
    tensor = gp.Tensor(lt(), engine, array)
    assert tensor.data_ptr == array.ctypes.data
    array[1, 2] = 7
    assert tensor.numpy()[1, 2] == 7
    tensor.numpy()[0, 0] = 3
    assert array[0, 0] == 3


def test_keeps_the_users_array_alive(engine):
    array = np.ones((2, 3), np.float32)
    gone = weakref.ref(array)
    tensor = gp.Tensor(lt(), engine, array)
    del array
    gc.collect()
    assert gone() is not None
    del tensor
    gc.collect()
    assert gone() is None


def test_read_only_data_stays_read_only(engine):
    array = np.ones((2, 3), np.float32)
    array.flags.writeable = False
    tensor = gp.Tensor(lt(), engine, array)
    assert tensor.is_readonly
    assert not tensor.numpy().flags.writeable


def test_allocates_aligned_memory_from_the_engine(engine):
    before = engine.stats().current_nbytes
    tensor = gp.Tensor(lt((5, 7)), engine)
    assert tensor.data_ptr % 64 == 0
    assert engine.stats().current_nbytes - before >= 140
    view = tensor.numpy()
    del tensor
    gc.collect()
    view[...] = 4
    assert view.sum() == 140
    del view
    gc.collect()
    assert engine.stats().current_nbytes == before


class OnlyDlpack:
    """An object with DLPack and nothing else."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_takes_dlpack_and_buffers(engine):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert gp.Tensor(lt(), engine, OnlyDlpack(array)).data_ptr == array.ctypes.data
    assert gp.Tensor(lt(), engine, memoryview(array)).data_ptr == array.ctypes.data


def test_gives_dlpack_and_array(engine):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = gp.Tensor(lt(), engine, array)
    assert np.from_dlpack(tensor).ctypes.data == array.ctypes.data
    np.testing.assert_array_equal(np.asarray(tensor), array)
    assert np.asarray(tensor).ctypes.data == array.ctypes.data
    assert np.array(tensor, copy=True).ctypes.data != array.ctypes.data


def test_strided_tensor(engine):
    base = np.arange(32, dtype=np.float32).reshape(4, 8)
    tensor = gp.Tensor(lt((4, 5), strides=(8, 1)), engine, base[:, :5])
    np.testing.assert_array_equal(tensor.numpy(), base[:, :5])


def test_zero_sizes_and_scalars(engine):
    assert gp.Tensor(lt((0, 3)), engine, np.empty((0, 3), np.float32)).numpy().shape == (0, 3)
    assert gp.Tensor(lt((0, 3)), engine).numpy().shape == (0, 3)
    assert gp.Tensor(lt(()), engine, np.float32(3)).numpy()[()] == 3
    scalar = gp.Tensor(lt((), "s64", property="host_scalar"), engine, 2**40)
    assert scalar.numpy()[()] == 2**40


@pytest.mark.parametrize("dtype", ["s4", "u4"])
def test_four_bit_tensors_are_packed(engine, dtype):
    numbers = np.array([[1, 7, -3 if dtype == "s4" else 13], [0, 5, 2]])
    array = numbers.astype(getattr(ml_dtypes, {"s4": "int4", "u4": "uint4"}[dtype]))
    tensor = gp.Tensor(lt((2, 3), dtype), engine, array)
    assert tensor.nbytes == 3
    np.testing.assert_array_equal(tensor.numpy().astype(int), numbers)
    raw = np.array([0x71, 0x0D, 0x25], np.uint8)
    np.testing.assert_array_equal(gp.Tensor(lt((2, 3), dtype), engine, raw).numpy().astype(int), numbers)


def test_four_bit_elements_lie_where_the_strides_say(engine):
    numbers = np.array([[1, 2, 3], [4, 5, 6]]).astype(ml_dtypes.uint4)
    transposed = gp.LogicalTensor(0, "u4", (2, 3), strides=(1, 2))
    np.testing.assert_array_equal(gp.Tensor(transposed, engine, numbers).numpy(), numbers)
    raw = np.array([0x41, 0x52, 0x63], np.uint8)
    np.testing.assert_array_equal(gp.Tensor(transposed, engine, raw).numpy(), numbers)


def test_bfloat16(engine):
    array = np.array([1.5, -2], ml_dtypes.bfloat16)
    np.testing.assert_array_equal(gp.Tensor(lt((2,), "bf16"), engine, array).numpy(), array)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (np.zeros((2, 3)), gp.InvalidDataTypeError, "tensor 5: data type; accepted: f32 (float32); got: float64"),
        (np.zeros((2, 4), "f4"), gp.InvalidShapeError, "tensor 5: dimension 1 of the data; accepted: shape (2, 3)"),
        (np.zeros(6, "f4"), gp.InvalidShapeError, "tensor 5: rank of the data"),
        (np.zeros((3, 2), "f4").T, gp.InvalidShapeError, "strides of the data"),
        ([[0.0] * 3] * 2, gp.InvalidArgumentError, "tensor 5: data; accepted: an array"),
        ("text", gp.InvalidArgumentError, "got: str"),
        (np.zeros((2, 3), ">f4"), gp.InvalidDataTypeError, "tensor 5: data type"),
        (np.zeros((2, 3), "V4"), gp.InvalidDataTypeError, "tensor 5: data type"),
        (5.0, gp.InvalidArgumentError, "got: float"),
    ],
)
def test_refuses_data_that_does_not_fit(engine, data, error, message):
    with pytest.raises(error) as caught:
        gp.Tensor(lt(), engine, data)
    assert message in str(caught.value)
    assert caught.value.tensor_id == 5


@pytest.mark.parametrize("shape", [None, (gp.UNKNOWN_DIM, 3)])
def test_data_of_an_unknown_shape_is_refused(engine, shape):
    with pytest.raises(gp.InvalidShapeError, match=r"tensor 5: (rank|dimension 0) of the data"):
        gp.Tensor(lt(shape), engine, np.zeros((2, 3), "f4"))


def test_a_host_scalar_fits_its_type(engine):
    with pytest.raises(gp.InvalidArgumentError, match="tensor 5: data"):
        gp.Tensor(lt((), "s32", property="host_scalar"), engine, 2**40)


def test_opaque_data_is_bytes(engine):
    opaque = lt((4, 3), layout="opaque", layout_id=17)
    assert gp.Tensor(opaque, engine, np.zeros(256, np.uint8)).nbytes == 256
    with pytest.raises(gp.InvalidArgumentError, match="a contiguous uint8 array of at least 256 bytes"):
        gp.Tensor(opaque, engine, np.zeros(255, np.uint8))


def test_layout_must_be_settled(engine):
    with pytest.raises(gp.InvalidArgumentError, match="layout; accepted: strided or opaque; got: any"):
        gp.Tensor(lt(layout="any"), engine)


def test_unknown_size_has_no_buffer(engine):
    tensor = gp.Tensor(lt(None), engine)
    assert not tensor.is_allocated
    with pytest.raises(gp.StateError, match="tensor 5 has no data yet"):
        tensor.numpy()


def test_identity_and_version(engine):
    a, b = gp.Tensor(lt(), engine), gp.Tensor(lt(), engine, id="encoder.w")
    assert (a.id, a.has_explicit_id) == (5, False)
    assert (b.id, b.has_explicit_id) == ("encoder.w", True)
    assert a.version != b.version
    seen = {a.version}
    for _ in range(3):
        a.invalidate()
        assert a.version not in seen
        seen.add(a.version)


def test_closed_engine_and_pickle(engine):
    other = gp.Engine()
    other.close()
    with pytest.raises(gp.StateError, match="is closed"):
        gp.Tensor(lt(), other)
    with pytest.raises(TypeError, match=r"pickle tensor.numpy\(\) instead"):
        pickle.dumps(gp.Tensor(lt(), engine))


def test_gives_its_memory_back_when_it_goes_in_a_cycle_with_its_engine():
    class Freed:
        """A resource that counts what it has out."""

        out = 0

        def allocate(self, nbytes, alignment=64, stream=None):
            Freed.out += 1
            return resource.allocate(nbytes, alignment, stream)

        def deallocate(self, address, nbytes, alignment=64, stream=None):
            Freed.out -= 1
            resource.deallocate(address, nbytes, alignment, stream)

    resource = gp.memory.HostResource()
    engine = gp.Engine(threads=1, allocator=Freed())
    cycle = [engine, *(gp.Tensor(lt(), engine) for _ in range(3))]
    cycle.append(cycle)
    del engine, cycle
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of the engine, which nobody has closed
        gc.collect()
    assert Freed.out == 0


@pytest.mark.parametrize("content", [np.zeros((1, 3), np.float32), np.zeros((), np.float32), np.zeros((2, 3)), 0])
def test_fill_takes_no_other_shape_or_type(engine, content):
    tensor = gp.Tensor(gp.LogicalTensor(0, "f32", (2, 3)), engine, np.ones((2, 3), np.float32))
    with pytest.raises(gp.InvalidArgumentError, match=r"accepted: float32 \(2, 3\)"):
        tensor.fill(content)
    assert tensor.numpy().all()


def test_masked_elements_are_refused_and_an_idle_mask_is_none(engine):
    lt, values = gp.LogicalTensor(0, "f32", (3,)), np.ones(3, np.float32)
    masked = np.ma.masked_array(values, [0, 1, 0])
    tensor = gp.Tensor(lt, engine)
    for use in (lambda: gp.Tensor(lt, engine, masked), lambda: tensor.fill(masked)):
        with pytest.raises(gp.InvalidArgumentError, match=r"tensor 0.*without masked elements.*filled"):
            use()
    np.testing.assert_array_equal(gp.Tensor(lt, engine, np.ma.masked_array(values)).numpy(), values)


def test_nested_lists_without_end_are_refused(engine):
    deep = []
    for _ in range(50_000):
        deep = [deep]
    for use in (
        lambda: gp.LogicalTensor(0, deep, (1,)), lambda: gp.Engine(deep), lambda: gp.Engine(threads=deep),
        lambda: gp.Tensor(gp.LogicalTensor(0, "f32", (1,)), engine).fill(deep),
    ):  # fmt: skip
        with pytest.raises(gp.GraphpoolError):
            use()
