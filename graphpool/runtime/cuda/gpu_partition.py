"""Compiled partitions on a GPU: programs of launches, and ops that the host computes between two copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from graphpool.errors import InvalidArgumentError, InvalidShapeError, StateError, brief, explain
from graphpool.fork import Locked

from .._program import FIRST_EXTERNAL
from .._tensor import Tensor, as_tensors
from .watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphpool.graph import LogicalTensor
    from graphpool.graph.partition import Partition
    from graphpool.schedule import Schedule

    from .._stream import Stream
    from ..engine import Engine
    from .gpu_queue import GpuQueue
    from .launches import LaunchList

    HostFunction = Callable[[list[np.ndarray[Any, Any]]], Sequence[np.ndarray[Any, Any]]]

__all__ = ["GpuPartition", "HostPartition"]


class _DevicePartition(Locked):
    """What both kinds have in common: the interface of `graphpool.CompiledPartition`.

    Parameters
    ----------
    partition : Partition
    inputs, outputs : sequence of LogicalTensor
        In the order in which `execute` takes tensors; settled.
    engine : Engine
    implementations : sequence of str
        Of each step.
    step_ops : sequence of int
        Id of the op of each step.
    """

    primitive = None
    program: LaunchList | None = None
    template = None
    schedule: Schedule | None = None
    scratchpad_nbytes = literals_nbytes = 0

    def __init__(
        self,
        partition: Partition,
        inputs: Sequence[LogicalTensor],
        outputs: Sequence[LogicalTensor],
        engine: Engine,
        implementations: Sequence[str],
        step_ops: Sequence[int],
    ) -> None:
        super().__init__()
        self.partition, self.engine = partition, engine
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.implementations, self.step_ops = tuple(implementations), tuple(step_ops)
        self.inplace_ports: tuple[tuple[int, int], ...] = ()
        self._is_closed = False
        engine.attach(self)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed or self.engine.is_closed

    @property
    def sequential_nbytes(self) -> int:
        """Memory that one execution needs beside its tensors. Unit: bytes."""
        return self.scratchpad_nbytes

    def query_logical_tensor(self, id: int) -> LogicalTensor:
        """The logical tensor of a port with shape, layout and size settled; InvalidArgumentError: there is none."""
        for lt in self.inputs + self.outputs:
            if lt.id == id:
                return lt
        raise InvalidArgumentError(
            explain(f"no port with id {brief(id)}", accepted=[lt.id for lt in self.inputs + self.outputs]), tensor_id=id
        )

    def cached_constants(self) -> dict[Any, int]:
        """None: constants are read as they lie."""
        return {}

    def prepare(self, inputs: Sequence[Tensor], *, options: object = None, stream: Stream | None = None) -> None:
        """Nothing is to be prepared."""

    def execute(
        self,
        stream: Stream,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor] | None = None,
        *,
        scratchpad: object = None,
        options: object = None,
    ) -> Sequence[Tensor]:
        """Give the work that computes the outputs from the inputs to a stream.

        Parameters
        ----------
        stream : Stream
            Of the engine that the partition was compiled for. What it holds is in order before this work.
        inputs, outputs : sequence of Tensor
            As for `graphpool.CompiledPartition.execute`.
        scratchpad : None
            Temporaries lie in memory of the stream.
        options : ExecuteOptions, optional
            Has no effect: no constants are cached.

        Returns
        -------
        outputs : sequence of Tensor
            Written when the work is done: `Stream.wait`, `Event.wait` and `Tensor.numpy` wait for that.

        Raises
        ------
        StateError
            The partition or the stream is closed, or the stream or a tensor belongs to another engine.
        InvalidArgumentError, InvalidShapeError
            A tensor is missing, does not match what was compiled, is read-only, or overlaps another one.
        OutOfMemoryError
            There is no memory for outputs or temporaries; nothing was given to the stream.

        Notes
        -----
        An index that the work finds outside its axis is told later, by an InvalidArgumentError that names the op: of
        `Stream.wait`, `Event.wait` or `Stream.close`, whichever comes first on the stream, and until then of whatever
        reads a tensor of the engine.
        """
        self._check(stream, scratchpad)
        results = [Tensor(lt, self.engine) for lt in self.outputs] if outputs is None else outputs
        sources = self._match(inputs, self.inputs, "input")
        targets = self._match(results, self.outputs, "output")
        self._check_overlap(sources, targets)
        self._run(stream, sources, targets)
        return results

    def _run(self, stream: Stream, sources: list[Tensor], targets: list[Tensor]) -> None:
        raise NotImplementedError

    def _check(self, stream: Stream, scratchpad: object) -> None:
        if self.is_closed:
            raise StateError(explain("the compiled partition is closed", hint="compile the partition again"))
        if stream.is_closed:
            raise StateError(explain("the stream is closed", hint="create another stream from the engine"))
        if stream.engine is not self.engine:
            hint = "create the stream from the engine that the partition was compiled for"
            raise StateError(explain(f"stream belongs to {stream.engine!r}", accepted=repr(self.engine), hint=hint))
        if scratchpad is not None:
            raise InvalidArgumentError(explain("scratchpad on a GPU", accepted="None", got=brief(scratchpad)))

    def _match(self, tensors: Sequence[Tensor], ports: Sequence[LogicalTensor], side: str) -> list[Tensor]:
        """The tensors of a side, checked, in the order of its ports."""
        by_id: dict[int, Tensor] = {}
        for tensor in as_tensors(tensors):
            if type(tensor) is not Tensor:
                raise InvalidArgumentError(explain("not a tensor", accepted="graphpool.Tensor", got=brief(tensor)))
            by_id.setdefault(tensor.lt.id, tensor)
        for lt in ports:
            if lt.id not in by_id:
                message = explain(f"no {side} tensor with id {lt.id}", got=f"ids {list(by_id)}")
                raise InvalidArgumentError(message, tensor_id=lt.id)
            self._check_tensor(by_id[lt.id], lt, side)
        return [by_id[lt.id] for lt in ports]

    def _check_tensor(self, tensor: Tensor, lt: LogicalTensor, side: str) -> None:
        if tensor.engine is not self.engine:
            hint = "make the tensor with the engine that the partition was compiled for"
            message = explain(f"tensor {lt.id} belongs to {tensor.engine!r}", accepted=repr(self.engine), hint=hint)
            raise StateError(message, tensor_id=lt.id)
        if not tensor.lt.has_same_content_type(lt):
            what = f"tensor {lt.id} is not what was compiled"
            hint = "compile the partition for this tensor"
            message = explain(what, accepted=repr(lt), got=repr(tensor.lt), hint=hint)
            raise InvalidShapeError(message, tensor_id=lt.id)
        if side == "output" and tensor.is_readonly:
            raise InvalidArgumentError(explain(f"output tensor {lt.id} is read-only"), tensor_id=lt.id)
        tensor.data_ptr  # noqa: B018  (raises where there is no buffer)

    def _check_overlap(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        spans = [(tensor.data_ptr, tensor.data_ptr + tensor.nbytes, tensor.lt.id) for tensor in (*sources, *targets)]
        for j in range(len(sources), len(spans)):
            for i in range(j):
                if spans[i][0] < spans[j][1] and spans[j][0] < spans[i][1]:
                    self._check_inplace(spans[i], spans[j], is_input=i < len(sources))

    def _check_inplace(self, one: tuple[int, int, int], other: tuple[int, int, int], *, is_input: bool) -> None:
        if not is_input or one[0] != other[0] or (one[2], other[2]) not in self.inplace_ports:
            what = f"output tensor {other[2]} shares memory with tensor {one[2]}"
            accepted = f"in-place pairs {list(self.inplace_ports)}"
            message = explain(what, accepted=accepted, hint="pass separate buffers")
            raise InvalidArgumentError(message, tensor_id=other[2])

    def predict_peak(self, executions: int = 1) -> int:
        """Memory of the device that executions on so many streams take at most, tensors not counted. Unit: bytes."""
        return self.scratchpad_nbytes * executions

    def stats(self) -> None:
        """None: temporaries lie in memory of streams."""

    def trim(self) -> int:
        """Nothing is kept; returns 0."""
        return 0

    def close(self) -> None:
        """Refuse further executions; those that were given to streams go on. Idempotent."""
        self._is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.is_closed else ""
        return f"{type(self).__name__}({self.partition!r}, {', '.join(self.implementations)}{state})"


class GpuPartition(_DevicePartition):
    """Runs launches; see `graphpool.CompiledPartition`.

    Parameters
    ----------
    partition, inputs, outputs, engine, implementations, step_ops
        As of `_DevicePartition`.
    program : LaunchList
    literals : bytes
        Numbers that are known now, which the partition keeps on the device.
    inplace_ports : sequence of (int, int)
        Ids of inputs and outputs that may share one buffer.

    Attributes
    ----------
    scratchpad_nbytes : int
        Temporaries of one execution. Unit: bytes.
    literals_nbytes : int
        What it keeps on the device until it is closed and its work done. Unit: bytes.
    """

    def __init__(
        self,
        partition: Partition,
        inputs: Sequence[LogicalTensor],
        outputs: Sequence[LogicalTensor],
        engine: Engine,
        implementations: Sequence[str],
        step_ops: Sequence[int],
        program: LaunchList,
        literals: bytes,
        inplace_ports: Sequence[tuple[int, int]],
    ) -> None:
        super().__init__(partition, inputs, outputs, engine, implementations, step_ops)
        self.program: LaunchList = program
        self.inplace_ports = tuple(inplace_ports)
        self.scratchpad_nbytes, self.schedule = program.arena_nbytes, program.schedule
        self._literals = _Literals(engine, literals)
        self.literals_nbytes = len(literals)
        self._ops = {op.id: op for op in partition.ops}

    def predict_peak(self, executions: int = 1) -> int:
        """Memory of the device that executions on so many streams take at most, tensors not counted. Unit: bytes."""
        return self.literals_nbytes + super().predict_peak(executions)

    def _run(self, stream: Stream, sources: list[Tensor], targets: list[Tensor]) -> None:
        queue: GpuQueue = stream.queue  # type: ignore[assignment]
        with queue.lock, self.engine.device.cuda.current():  # type: ignore[attr-defined]
            tensors = [tensor.data_ptr if tensor.nbytes else 0 for tensor in (*sources, *targets)]
            watch = self.watch()
            if watch is not None:
                watch.begin()
            try:
                self.program.run(queue.handle, self.bases(queue.arena(self.scratchpad_nbytes), tensors, watch))
            finally:  # a launch that fails leaves those before it
                queue.hold((sources, targets, self._literals), watch)

    def bases(self, arena: int, tensors: Sequence[int], watch: Watch | None) -> list[int]:
        """Addresses that the program runs on: of temporaries, literals, inputs, outputs and what it tells."""
        found = [arena, self._literals.address, *tensors]
        assert len(found) - len(tensors) == FIRST_EXTERNAL
        return found if watch is None else [*found, watch.address]

    def watch(self) -> Watch | None:
        """What tells of one run's indices; None where no launch looks at any."""
        if not self.program.watched:
            return None
        return Watch(self, self.engine.device.words)  # type: ignore[attr-defined]

    def op_of(self, launch: int) -> tuple[str, str]:
        """Name and kind of the op of a launch."""
        op = self._ops[self.step_ops[launch]]
        return op.name, op.kind

    def close(self) -> None:
        """Refuse further executions, and let go of the literals; executions given to streams go on. Idempotent."""
        super().close()
        self._literals = _Literals(self.engine, b"")


class _Literals:
    """Numbers on the device, which go when nobody holds them any more."""

    def __init__(self, engine: Engine, content: bytes) -> None:
        self._resource = engine.resource
        self.nbytes, self.address = 0, 0
        if content:
            self.address = self._resource.allocate(len(content), 256)
            self.nbytes = len(content)
            engine.device.write(self.address, np.frombuffer(content, np.uint8))  # type: ignore[attr-defined]

    def __del__(self) -> None:
        if getattr(self, "nbytes", 0):
            self._resource.deallocate(self.address, self.nbytes, 256)


class HostPartition(_DevicePartition):
    """Ops that no kernel of the GPU computes: inputs are copied to the host, results to the device.

    Parameters
    ----------
    partition, inputs, outputs, engine, implementations, step_ops
        As of `_DevicePartition`.
    function : callable
        Takes arrays of the inputs, gives arrays of the outputs.

    Notes
    -----
    `execute` returns when the results are on the device. ``engine.device.copies`` counts the copies.
    """

    def __init__(
        self,
        partition: Partition,
        inputs: Sequence[LogicalTensor],
        outputs: Sequence[LogicalTensor],
        engine: Engine,
        implementations: Sequence[str],
        step_ops: Sequence[int],
        function: HostFunction,
    ) -> None:
        super().__init__(partition, inputs, outputs, engine, implementations, step_ops)
        self._function = function

    def _run(self, stream: Stream, sources: list[Tensor], targets: list[Tensor]) -> None:
        for tensor, result in zip(targets, self.compute([tensor.numpy() for tensor in sources]), strict=True):
            tensor.fill(result)

    def compute(self, inputs: list[np.ndarray[Any, Any]]) -> Sequence[np.ndarray[Any, Any]]:
        """Arrays of the outputs for arrays of the inputs."""
        return self._function(inputs)
