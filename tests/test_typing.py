"""What every package shares."""

import numpy as np
import pytest

import graphpool as gp
from graphpool.typing import DataType, parse_nbytes


@pytest.mark.parametrize(("text", "nbytes"), [
    (0, 0), (2**70, 2**70), ("7", 7), ("512MiB", 2**29), (" 1.5 gb ", 1_500_000_000), ("2.KiB", 2048), (".5 kib", 512),
    ("300M", 300_000_000), ("300Mi", 300 << 20), ("0.5TiB", 2**39), (np.int64(7), 7), (np.uint8(3), 3),
])  # fmt: skip
def test_sizes(text, nbytes):
    assert parse_nbytes(text) == nbytes


@pytest.mark.parametrize(
    "text",
    ["", ".", "-1", "1..5", "1.5.2", "\u00b2", "\u0663", "9" * 400 + "GiB", "nan", "1e3", -1, True, 1.5, None, b"1"],
)
def test_what_is_no_size(text):
    with pytest.raises(gp.InvalidArgumentError, match="not a size"):
        parse_nbytes(text)


@pytest.mark.parametrize("value", [None, 7, 1.5, "float", [], {}, object(), object, "i4,i4", [("a", "f4")], b"f32"])
def test_what_is_no_data_type(value):
    with pytest.raises(gp.InvalidDataTypeError, match="unknown data type"):
        DataType.parse(value)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [("float32", DataType.F32), ("bool", DataType.BOOLEAN), ("bfloat16", DataType.BF16), ("int8", DataType.S8),
     ("u8", DataType.U8), ("u4", DataType.U4), (float, DataType.F64), ("uint8", DataType.U8)],
)  # fmt: skip
def test_names_of_numpy_are_data_types(value, dtype):
    assert DataType.parse(value) is dtype
