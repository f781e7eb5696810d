"""Matrix products by cuBLASLt, through nvmath-python, where both are installed: nothing else calls them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import dataclass
from graphpool._kernels.cuda.source import CudaKernel
from graphpool.errors import BackendError, explain
from graphpool.log import compile_log

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphpool.memory.cuda import CudaDevice

__all__ = ["CublasLt", "LibraryProduct", "Matrix", "Products"]

TYPES = {"f32": 0, "f16": 2, "bf16": 14}
"""Element type -> that of ``cudaDataType``."""
COMPUTE_F32 = 68
"""Of ``cublasComputeType_t``: sums in f32, without TF32."""

MOST_WORKSPACE_NBYTES = 4 << 20
ALIGNMENT = 16
"""Of addresses for which there are the fastest algorithms; other ones serve where an address has less. Unit: bytes."""
WORKSPACE_ALIGNMENT = 256
"""Of the workspace, which the library refuses otherwise. Unit: bytes."""


@dataclass(frozen=True)
class Matrix:
    """A batch of matrices, each with its columns one after another, `ld` elements from one to the next.

    `step` leads from a matrix of the batch to the next one, 0 where they are one; `is_turned` says that its transpose
    is what is multiplied. Unit of `ld` and `step`: elements.
    """

    rows: int
    cols: int
    ld: int
    step: int
    dtype: str
    is_turned: bool = False


@dataclass(frozen=True)
class Products:
    """``result = left right`` for each of a batch."""

    batch: int
    left: Matrix
    right: Matrix
    result: Matrix


class CublasLt:
    """cuBLASLt on one device.

    Parameters
    ----------
    device : CudaDevice
    library : module
        ``nvmath.bindings.cublasLt``, or what tests put in its place.

    Notes
    -----
    Threads: safe.
    """

    def __init__(self, device: CudaDevice, library: Any) -> None:
        self.device, self.library = device, library
        with device.current():
            self.handle = library.create()

    @classmethod
    def find(cls, device: CudaDevice) -> CublasLt | None:
        """The library on a device; None where it is not installed, or does not take the device, which is logged."""
        library = find_library()
        if library is None:
            return None
        try:
            return cls(device, library)
        except Exception as error:  # nvmath-python has many
            compile_log.info("cuBLASLt is not used on GPU %d: %s", device.index, error)
            return None

    def plan(self, products: Products) -> LibraryProduct | None:
        """The call that computes them; None where the library has no algorithm for them."""
        try:
            with self.device.current():
                return LibraryProduct(self, products)
        except Exception as error:
            compile_log.info("cuBLASLt does not compute %s: %s", products, error)
            return None

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "handle") and not is_finalizing():
            with self.device.current():
                self.library.destroy(self.handle)


def find_library() -> Any:
    """``nvmath.bindings.cublasLt``, or None."""
    try:
        from nvmath.bindings import cublasLt
    except ImportError:
        return None
    return cublasLt


class LibraryProduct:
    """A call of cuBLASLt but for the addresses: left, right, result, and the workspace if it wants one.

    Raises what the library raises where it has no algorithm.
    """

    kernel = CudaKernel("cublasLt", "", "")
    ntasks = 1
    scratch_nbytes = 0
    is_watched = False

    def __init__(self, owner: CublasLt, products: Products) -> None:
        self._owner, self._library = owner, owner.library
        self._made: list[tuple[Callable[[int], object], int]] = []
        self._numbers = np.array([1, 0], np.float32)  # of the product, and of what was in its place
        try:
            self._describe(products)
            self._algorithms = {
                nbytes: self._choose(nbytes) for nbytes in (ALIGNMENT, 4 if products.left.dtype == "f32" else 2)
            }
        except BaseException:
            self._destroy()
            raise
        self._workspace_nbytes = int(max(found["workspace_size"][0] for found in self._algorithms.values()))
        self.workspace_nbytes = self._workspace_nbytes + WORKSPACE_ALIGNMENT if self._workspace_nbytes else 0

    def _describe(self, products: Products) -> None:
        library = self._library
        self._operation = self._keep(library.matmul_desc_create(COMPUTE_F32, TYPES["f32"]), library.matmul_desc_destroy)
        attributes = library.MatmulDescAttribute
        for attribute, matrix in ((attributes.TRANSA, products.left), (attributes.TRANSB, products.right)):
            self._set(library.matmul_desc_set_attribute, self._operation, attribute, np.int32(matrix.is_turned))
        self._layouts = [
            self._layout(matrix, products.batch) for matrix in (products.left, products.right, products.result)
        ]

    def _layout(self, matrix: Matrix, batch: int) -> int:
        library = self._library
        created = library.matrix_layout_create(TYPES[matrix.dtype], matrix.rows, matrix.cols, matrix.ld)
        layout, attributes = self._keep(created, library.matrix_layout_destroy), library.MatrixLayoutAttribute
        self._set(library.matrix_layout_set_attribute, layout, attributes.BATCH_COUNT, np.int32(batch))
        self._set(library.matrix_layout_set_attribute, layout, attributes.STRIDED_BATCH_OFFSET, np.int64(matrix.step))
        return layout

    def _choose(self, alignment: int) -> Any:
        """The best algorithm for addresses of an alignment in bytes, with what it needs."""
        library, attributes = self._library, self._library.MatmulPreferenceAttribute
        preference = library.matmul_preference_create()
        try:
            change = library.matmul_preference_set_attribute
            self._set(change, preference, attributes.MAX_WORKSPACE_BYTES, np.uint64(MOST_WORKSPACE_NBYTES))
            for name in "ABCD":
                self._set(change, preference, attributes[f"MIN_ALIGNMENT_{name}_BYTES"], np.uint32(alignment))
            found, count = np.zeros(1, library.matmul_heuristic_result_dtype), np.zeros(1, np.int32)
            left, right, result = self._layouts
            library.matmul_algo_get_heuristic(
                self._owner.handle, self._operation, left, right, result, result, preference, 1, found.ctypes.data,
                count.ctypes.data,
            )  # fmt: skip
        finally:
            library.matmul_preference_destroy(preference)
        if not count[0] or found["state"][0]:
            raise BackendError(explain("cuBLASLt has no algorithm"))
        return found

    def launch(self, stream: int, addresses: Sequence[int]) -> None:
        """Give the call to a stream; the device's context is current.

        Raises
        ------
        BackendError
            The library refuses it.
        """
        left, right, result, *workspace = addresses
        is_aligned = not any(address % ALIGNMENT for address in (left, right, result))
        algorithm = self._algorithms[max(self._algorithms) if is_aligned else min(self._algorithms)]
        one, zero = self._numbers.ctypes.data, self._numbers.ctypes.data + self._numbers.itemsize
        layouts = self._layouts
        room = [address + -address % WORKSPACE_ALIGNMENT for address in workspace] or [0]
        try:
            self._library.matmul(
                self._owner.handle, self._operation, one, left, layouts[0], right, layouts[1], zero, result,
                layouts[2], result, layouts[2], algorithm.ctypes.data, *room, self._workspace_nbytes, stream,
            )  # fmt: skip
        except Exception as error:
            raise BackendError(explain("cublasLtMatmul failed", got=str(error))) from error

    def _set(self, change: Callable[..., object], item: int, attribute: int, value: np.generic) -> None:
        array = np.array([value])
        change(item, int(attribute), array.ctypes.data, array.nbytes)

    def _keep(self, item: int, destroy: Callable[[int], object]) -> int:
        self._made.append((destroy, item))
        return item

    def _destroy(self) -> None:
        while self._made:
            destroy, item = self._made.pop()
            destroy(item)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            self._destroy()
