"""Engines of kind ``gpu`` on the test driver: each kernel that is compiled gets its host form first.

Imports what only processes that `tests/cuda/test_on_driver.py` starts may import.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import graphpool as gp
from graphpool._kernels.cuda import nvrtc
from graphpool.backends.cuda.backend import lower, settle_ports
from graphpool.runtime.cuda import modules
from tests.helpers.cuda_driver import FOLDER_VARIABLE, TestDriver, compile_all_twins

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from graphpool._kernels.cuda.source import CudaKernel

FAST = (b"--Ofast-compile=max",)
"""Options of NVRTC: the driver reads a cubin's head alone, and `test_cubins.py` has those of graphpool."""

SOURCES_OF_A_LIBRARY = 24
"""Kernels that one run of the compiler takes."""


class NoTwins:
    """What a device has, which runs kernels as they are."""

    def add(self, kernels: Iterable[CudaKernel]) -> None:
        """Has no effect."""


class Twins:
    """The host forms of kernels, in libraries that the test driver has loaded."""

    def __init__(self, driver: TestDriver) -> None:
        self._driver, self._known = driver, set[str]()
        self._folder = Path(os.environ[FOLDER_VARIABLE])
        self._find_cubin = modules.find_cubin

    def add(self, kernels: Iterable[CudaKernel]) -> None:
        """Compile those that are not there, and load them."""
        missing = {kernel.entry: kernel for kernel in kernels if kernel.entry not in self._known}
        entries = sorted(missing)
        for first in range(0, len(entries), SOURCES_OF_A_LIBRARY):
            some = entries[first : first + SOURCES_OF_A_LIBRARY]
            name = f"{some[0]}-{some[-1].rpartition('_')[2]}-{len(some)}"
            library = self._folder / f"{name}.so"
            if not library.exists():
                compile_all_twins([(missing[entry].text, [entry]) for entry in some], self._folder, name)
            self._driver.load_twins(library)
            self._known.update(some)

    def find_cubin(self, kernel: CudaKernel, architecture: int) -> bytes:
        """In place of the function of this name: first of all the host form."""
        self.add([kernel])
        return self._find_cubin(kernel, architecture)

    @contextmanager
    def in_use(self) -> Iterator[Twins]:
        """Let engines find them, inside a ``with`` block."""
        modules.find_cubin, options = self.find_cubin, nvrtc.OPTIONS
        nvrtc.OPTIONS = (*options, *FAST)
        try:
            yield self
        finally:
            modules.find_cubin, nvrtc.OPTIONS = self._find_cubin, options


def kernels_of(partitions: Sequence[gp.Partition], shapes: dict[int, tuple[int, ...]]) -> list[CudaKernel]:
    """The kernels that partitions of the CUDA backend take, compiled for the shapes of their inputs, in order."""
    found = []
    for partition in partitions:
        inputs = [lt.replace(shape=shapes[lt.id]) for lt in partition.input_ports]
        outputs = [lt.replace(shape=shapes[lt.id]) for lt in partition.output_ports]
        assert partition.backend_name == "cuda"
        found += [step.call.kernel for step in lower(partition.ops, *settle_ports(partition, inputs, outputs)).steps]
    return found


def upload(lt: gp.LogicalTensor, engine: gp.Engine, array: np.ndarray[Any, Any]) -> gp.Tensor:
    """A tensor on the device with the content of an array."""
    tensor = gp.Tensor(lt if lt.shape == array.shape else lt.replace(shape=array.shape), engine)
    tensor.fill(array)
    return tensor


def run_partitions(
    partitions: Sequence[gp.Partition], values: dict[int, np.ndarray[Any, Any]], engine: gp.Engine
) -> dict[int, np.ndarray[Any, Any]]:
    """Compile and execute all partitions in order on one stream, without waiting between them; all their results.

    What leaves no partition is dropped while the work that uses it is pending.
    """
    tensors = {}
    known = {lt.id: lt for partition in partitions for lt in partition.input_ports}
    tensors = {number: upload(known[number], engine, array) for number, array in values.items() if number in known}
    found = {}
    with gp.Stream(engine) as stream:
        for number, partition in enumerate(partitions):
            inputs = [tensors[lt.id].lt for lt in partition.input_ports]
            compiled = partition.compile(inputs, [lt.replace(shape=None) for lt in partition.output_ports], engine)
            results = compiled.execute(stream, [tensors[lt.id] for lt in inputs])
            compiled.close()
            tensors.update((tensor.lt.id, tensor) for tensor in results)
            del results
            later = {lt.id for other in partitions[number + 1 :] for lt in other.input_ports}
            for lt in (*partition.input_ports, *partition.output_ports):
                if lt.id not in later and lt.id in tensors and lt not in partition.output_ports:
                    del tensors[lt.id]
        for partition in partitions:
            for lt in partition.output_ports:
                if lt.id in tensors:
                    found[lt.id] = np.array(tensors[lt.id].numpy())
    return found
