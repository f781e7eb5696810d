"""What stands in for ``nvmath.bindings.cublasLt``: it keeps each call, refuses what cuBLASLt would, and computes.

It knows of a product what descriptions, layouts and addresses say, and gives that to a kernel of ours.
Imports what only processes that `tests/cuda/test_on_driver.py` starts may import.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from cuda.bindings import driver

from graphpool._kernels.cuda.products import matmul
from graphpool._kernels.eltwise.eltwise import EltwiseBuilder
from graphpool.memory.cuda import open_device
from graphpool.runtime.cuda.launches import KernelLaunch
from graphpool.runtime.cuda.modules import find_function
from tests.helpers.cuda_device import check

NAMES = {0: "f32", 2: "f16", 14: "bf16"}
COMPUTE_F32, SUCCESS = 68, 0
WORKSPACE_NBYTES = {16: 1 << 12, 4: 3000, 2: 3000}
"""What algorithms want, by the least alignment of addresses."""


class Call(NamedTuple):
    """What a product was: of the addresses, the alignment that its algorithm takes for granted. Unit: bytes."""

    batch: int
    rows: int
    cols: int
    depth: int
    dtypes: tuple[str, str]
    alignment: int


class RecordingLibrary:
    """The library, with `calls`; what was made and is not destroyed is `live`; `refuses` lets it have no algorithm."""

    MatmulDescAttribute = IntEnum("MatmulDescAttribute", {"TRANSA": 3, "TRANSB": 4})
    MatrixLayoutAttribute = IntEnum("MatrixLayoutAttribute", {"BATCH_COUNT": 5, "STRIDED_BATCH_OFFSET": 6})
    MatmulPreferenceAttribute = IntEnum(
        "MatmulPreferenceAttribute",
        {"MAX_WORKSPACE_BYTES": 1, **{f"MIN_ALIGNMENT_{name}_BYTES": 5 + k for k, name in enumerate("ABCD")}},
    )
    matmul_heuristic_result_dtype = np.dtype(
        [("algo", "<u8", (8,)), ("workspace_size", "<u8"), ("state", "<i4"), ("waves_count", "<f4"),
         ("reserved", "<i4", (4,))]
    )  # fmt: skip

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.live: dict[int, dict[str, Any]] = {}
        self.refuses = self.fails = False
        self._device, self._numbers = open_device(), count(1)

    def _make(self, kind: str, **fields: Any) -> int:
        number = next(self._numbers)
        self.live[number] = {"kind": kind, **fields}
        return number

    def _of(self, kind: str, number: int) -> dict[str, Any]:
        assert self.live[number]["kind"] == kind
        return self.live[number]

    def _set(self, kind: str, number: int, names: Any, attribute: int, address: int, nbytes: int, types: Any) -> None:
        name = names(attribute).name
        dtype = np.dtype(types[name])
        assert nbytes == dtype.itemsize, name
        self._of(kind, number)[name] = int(np.frombuffer(ctypes.string_at(address, nbytes), dtype)[0])

    # ---- as the library has it

    def create(self) -> int:
        if self.fails:
            raise RuntimeError("no handle")
        return self._make("handle")

    def destroy(self, handle: int) -> None:
        del self.live[handle]

    def matmul_desc_create(self, compute: int, scale: int) -> int:
        assert (compute, NAMES[scale]) == (COMPUTE_F32, "f32")
        return self._make("operation", TRANSA=0, TRANSB=0)

    def matmul_desc_set_attribute(self, number: int, attribute: int, address: int, nbytes: int) -> None:
        types = {"TRANSA": "<i4", "TRANSB": "<i4"}
        self._set("operation", number, self.MatmulDescAttribute, attribute, address, nbytes, types)

    def matrix_layout_create(self, dtype: int, rows: int, cols: int, ld: int) -> int:
        assert min(rows, cols) > 0
        assert ld >= rows
        return self._make("layout", dtype=NAMES[dtype], rows=rows, cols=cols, ld=ld)

    def matrix_layout_set_attribute(self, number: int, attribute: int, address: int, nbytes: int) -> None:
        types = {"BATCH_COUNT": "<i4", "STRIDED_BATCH_OFFSET": "<i8"}
        self._set("layout", number, self.MatrixLayoutAttribute, attribute, address, nbytes, types)

    def matmul_preference_create(self) -> int:
        return self._make("preference")

    def matmul_preference_set_attribute(self, number: int, attribute: int, address: int, nbytes: int) -> None:
        types = dict.fromkeys(self.MatmulPreferenceAttribute.__members__, "<u4") | {"MAX_WORKSPACE_BYTES": "<u8"}
        self._set("preference", number, self.MatmulPreferenceAttribute, attribute, address, nbytes, types)

    matmul_desc_destroy = matrix_layout_destroy = matmul_preference_destroy = destroy

    def matmul_algo_get_heuristic(
        self, handle: int, operation: int, a: int, b: int, c: int, d: int, preference: int, wanted: int, results: int,
        found: int,
    ) -> None:  # fmt: skip
        self._of("handle", handle)
        self._sizes(operation, a, b, d)
        assert (c, wanted) == (d, 1)
        given = self._of("preference", preference)
        [alignment] = {given[f"MIN_ALIGNMENT_{name}_BYTES"] for name in "ABCD"}
        assert WORKSPACE_NBYTES[alignment] <= given["MAX_WORKSPACE_BYTES"]
        result = np.zeros(1, self.matmul_heuristic_result_dtype)
        result["algo"], result["workspace_size"] = alignment, WORKSPACE_NBYTES[alignment]
        ctypes.memmove(results, result.ctypes.data, result.nbytes)
        ctypes.c_int.from_address(found).value = 0 if self.refuses else 1

    def matmul(
        self, handle: int, operation: int, alpha: int, a: int, a_layout: int, b: int, b_layout: int, beta: int, c: int,
        c_layout: int, d: int, d_layout: int, algorithm: int, workspace: int, workspace_nbytes: int, stream: int,
    ) -> None:  # fmt: skip
        if self.fails:
            raise RuntimeError("no product")
        self._of("handle", handle)
        assert (c, c_layout) == (d, d_layout)
        assert [ctypes.c_float.from_address(number).value for number in (alpha, beta)] == [1, 0]
        alignment = ctypes.c_uint64.from_address(algorithm).value
        assert not any(address % alignment for address in (a, b, d))
        assert workspace_nbytes >= WORKSPACE_NBYTES[alignment]
        assert workspace % 256 == 0
        batch, rows, cols, depth = self._sizes(operation, a_layout, b_layout, d_layout)
        left, right, result = (self._of("layout", number) for number in (a_layout, b_layout, d_layout))
        turns = [self._of("operation", operation)[name] for name in ("TRANSA", "TRANSB")]
        sides = []
        for side, is_turned in zip((left, right), turns, strict=True):
            along = (side["ld"], 1) if is_turned else (1, side["ld"])
            sides.append((side["dtype"], (side["STRIDED_BATCH_OFFSET"], *along)))
        builder = EltwiseBuilder((batch, rows, cols))
        builder.store(0, result["dtype"], (result["STRIDED_BATCH_OFFSET"], 1, result["ld"]), builder.acc())
        call = matmul((batch,), rows, cols, depth, *sides, builder.program())
        check(driver.cuMemsetD8Async(workspace, 0xAB, WORKSPACE_NBYTES[alignment], stream))
        KernelLaunch(call, find_function(self._device, call.kernel)).launch(stream, [a, b, d])
        self.calls.append(Call(batch, rows, cols, depth, (left["dtype"], result["dtype"]), alignment))

    def _sizes(self, operation: int, a: int, b: int, d: int) -> tuple[int, int, int, int]:
        """(batch, rows, cols, depth), which have to fit one another."""
        given, (left, right, result) = self._of("operation", operation), (self._of("layout", k) for k in (a, b, d))
        sides = [
            (side["cols"], side["rows"]) if given[name] else (side["rows"], side["cols"])
            for side, name in ((left, "TRANSA"), (right, "TRANSB"))
        ]
        (rows, depth), (inner, cols) = sides
        assert (depth, rows, cols) == (inner, result["rows"], result["cols"])
        assert left["dtype"] == right["dtype"]
        [batch] = {side["BATCH_COUNT"] for side in (left, right, result)}
        assert batch == 1 or abs(result["STRIDED_BATCH_OFFSET"]) >= rows * cols
        return batch, rows, cols, depth
