"""Runs graphs on several threads, whatever the runtime would choose."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

import graphpool as gp
from tests.cases.graphs import GraphBuilder
from tests.cases.inputs import random_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Job", "compile_whole"]


class Job:
    """A compiled partition with random inputs; `run` gives the bytes of its outputs.

    Parameters
    ----------
    compiled : CompiledPartition
    rng : numpy.random.Generator
    bounds : float
        ``low`` and ``high`` of the inputs.
    """

    def __init__(self, compiled: gp.CompiledPartition, rng: np.random.Generator, **bounds: float) -> None:
        self.compiled = compiled
        self.engine = compiled.engine
        self.inputs = [gp.Tensor(lt, self.engine, random_array(lt, rng, **bounds)) for lt in compiled.inputs]

    def run(self, stream: gp.Stream) -> list[bytes]:
        """Execute into fresh outputs full of 0xFF."""
        outputs = [gp.Tensor(lt, self.engine, np.full(lt.nbytes, 255, np.uint8).view(lt.dtype.numpy).reshape(lt.shape))
                   for lt in self.compiled.outputs]  # fmt: skip
        self.compiled.execute(stream, self.inputs, outputs)
        return [tensor.numpy().tobytes() for tensor in outputs]


@contextmanager
def compile_whole(
    build: Callable[[GraphBuilder], object],
    threads: int,
    seed: int = 0,
    schedule: str = "sequential",
    streams: int = 1,
    **bounds: float,
) -> Iterator[Job]:
    """All ops of a graph as one program that every run shares among up to `threads` threads."""
    builder = GraphBuilder()
    build(builder)
    partitions = builder.finish()
    whole = builder.graph.merge_partitions(partitions)
    outputs = [lt.replace(shape=None) for lt in whole.output_ports]
    with (
        gp.Engine(threads=threads) as engine,
        whole.compile(whole.input_ports, outputs, engine, schedule=schedule, streams=streams) as compiled,
    ):
        compiled.program.trials = 0 if threads > 1 else -1
        yield Job(compiled, np.random.default_rng(seed), **bounds)
