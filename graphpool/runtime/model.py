"""A model: named inputs to named outputs, compiled once for all input shapes for which its decisions hold."""

from __future__ import annotations

import sys
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

from graphpool.cache.process import borrow_packed, return_packed
from graphpool.errors import InvalidArgumentError, StateError, UnsupportedError, brief, check_choice, explain

from .heap import trim_heap
from .model_forms import ModelForms
from .model_memory import Ranked
from .model_port import check_is_mapping, describe_port
from .scheduling import parse_options

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import numpy as np

    from graphpool.cache import ConstantBuffer, PackedKey
    from graphpool.cache.process import PackedSource
    from graphpool.graph.partition import Partition
    from graphpool.memory import BufferInfo

    from ._stream import Stream
    from .engine import Engine
    from .executable import Executable
    from .host_room import RunBound
    from .memory_peak import MemoryPeak
    from .model_form import ModelForm
    from .model_forms import ModelStats, Specialise
    from .model_port import ModelPort
    from .request_batches import Batch, Padding
    from .session import Session

__all__ = ["WEIGHTS_MODES", "Model"]

WEIGHTS_MODES = ("scoped", "cached", "packed")


class Model(Ranked):
    """Runs a whole graph: some partitions on backends, the others on host functions.

    Parameters
    ----------
    inputs, outputs : sequence of ModelPort
    specialise : callable
        Takes the input shapes by name (None for inputs that are no arrays) and the values of the `deciding` inputs by
        name, and returns a `ModelForm`.
    engine : Engine
    deciding : collection of str, default=()
        Inputs whose content decides shapes; the model is specialised to their values, of which up to 64 int32 or int64
        of an input vary as sizes do.
    capacity : int, default=16
        Specialised forms to keep; the least recently used one is given up first.
    owns_engine : bool, default=False
        Whether `close` closes the engine too.
    name : str, default="model"
    schedule : str, optional
        How steps are placed on streams: ``sequential``, ``wavefront``, ``asap``, ``nimble``, ``list``, ``ios``, or
        ``auto``, which simulates all and keeps to one stream unless more promise a gain. Default: the variable
        ``GRAPHPOOL_STREAM_SCHEDULE``, else ``auto``. Results do not depend on it.
    streams : int, optional
        Most streams, which divide the threads of the engine among them. Default: 2.
    weights : {"scoped", "cached", "packed"}, default="scoped"
        Whether packed constants leave the constant tensor cache with the model, stay there when it is closed, or
        replace the constants: of a weight in memory that kernels read packed alone, whose packing can be undone, the
        model then keeps the packed weights alone, whatever becomes of the cache. `read_weight` unpacks it.
    shapes : mapping of str to int, (int, int) or sequence, optional
        The shapes to come, such as ``{"batch": (1, 8), "tokens": (1, 512)}``: for a named dimension a number or a
        range, both ends included; for an input one of these for each dimension, or a name, which says that sizes are
        equal (``{"rows": (1, 9), "age": ("rows", 1), "job": ("rows", 1)}``); for a dimension that is as long as others
        together their sum (``{"past": (0, 512), "new": (1, 8), "total": "past + new"}``). With all sizes declared, and
        no `deciding` inputs, the model is compiled at once, one plan of memory holds for all shapes, `predict_peak`
        tells the most that any of them takes, and what does not fit the engine's limit is refused now.
    metadata : object, optional
        What the importer knows of the model's origin; of an ONNX file a `graphpool.onnx.ModelMetadata`.
    priority : float, default=1.0
        How much more it is worth than another model of the engine that is used as often, when memory is short.
    stream : Stream, optional
        Whose threads the model runs on, shared with other models. Default: its own.
    packed : PackedStore or SealedStore, optional
        Where packed weights are looked for, beside the store of the process, until the model is closed.

    Attributes
    ----------
    inputs, outputs : tuple of ModelPort
    engine : Engine
    name : str
    options : ScheduleOptions
    weights : str
    metadata : object
    is_static : bool
        Whether the file gives the shapes of all inputs, and no input's content decides others.

    Raises
    ------
    InvalidArgumentError
        An option is none of those accepted; `shapes` has a name that no dimension or input has, or no range.
    OutOfMemoryError
        The declared shapes do not fit the engine's limit. ``largest`` has, for each size that varies, the largest upper
        end that would fit, were the others left as they are.

    Notes
    -----
    Ownership: owns its compiled forms; arrays given to `run` are not kept. Threads: safe; runs go on side by side, each
    with an arena of its own, and one form is compiled at a time. Cost of `run`: three microseconds beyond the work, and
    a fraction of one for each further partition, input and output; new shapes take a fraction of a millisecond, or a
    compilation where a decision changes.
    Source: oneDNN Graph's programming model, what a framework does around partitions.
    """

    def __init__(
        self,
        inputs: Sequence[ModelPort],
        outputs: Sequence[ModelPort],
        specialise: Specialise,
        engine: Engine,
        *,
        deciding: Collection[str] = (),
        capacity: int = 16,
        owns_engine: bool = False,
        name: str = "model",
        schedule: str | None = None,
        streams: int | None = None,
        weights: str = "scoped",
        shapes: Mapping[str, Any] | None = None,
        metadata: Any = None,
        priority: float = 1.0,
        stream: Stream | None = None,
        packed: PackedSource | None = None,
    ) -> None:
        check_choice("weights", weights, WEIGHTS_MODES)
        if not isinstance(capacity, int) or capacity < 1:
            raise InvalidArgumentError(explain("capacity", accepted="an int of at least 1", got=brief(capacity)))
        self.options = parse_options(schedule, streams)
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.engine, self.name, self.weights, self.metadata = engine, name, weights, metadata
        self._owns_engine = owns_engine
        self._forms = ModelForms(
            self.inputs, self.outputs, specialise, engine, name, self.options, weights, deciding, capacity, shapes,
            priority, stream,
        )  # fmt: skip
        self._memory = self._forms.memory
        self.is_static = all(port.is_static and port.name not in self._forms.deciding for port in self.inputs)
        self._packed: PackedSource | None = None
        try:
            self._look_in(packed)
            engine.attach(self)
            self._forms.load(not self.is_static)
        except BaseException:
            self.close()
            raise

    # ---- running

    def run(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Compute the outputs.

        Parameters
        ----------
        inputs : mapping of str to array
            One for each input, of its type and shape: NumPy arrays (read-only ones too) or objects with DLPack. They
            are not written; they are copied only if they are not dense, which the budget counts during the run.
        outputs : mapping of str to ndarray, optional
            Where results go: writable, dense arrays of the outputs' types and shapes, apart from one another and from
            the inputs. With all of them given a warm run allocates nothing on the heap.

        Returns
        -------
        outputs : dict of str to ndarray
            In the order of `outputs`: the arrays given, fresh ones for the others, which the engine's budget counts
            until nobody holds them any more. The memory of a large one is then taken again by a later run; `trim`, idle
            decay and pressure give it back. ONNX's sequences and maps are lists and dicts, for which checkers are told
            ``Any``.

        Raises
        ------
        InvalidArgumentError, InvalidDataTypeError, InvalidShapeError
            An input is missing or unknown, or does not fit, or an output; or an element of an input is no place in the
            table that a node reads with it. The message names it. Nothing was run. Or an index that the run computed
            lies outside the axis that it counts: raised when what uses it has ended, by the name of the node.
        OutOfMemoryError
            The engine's budget cannot hold constants, programs, arena and results at once; nothing was run. Where that
            can never be, `smallest_limit` is the least limit that would do. Or a host function asked for more than was
            left, which cannot be told before.
        StateError
            The model is closed.
        BackendError
            A host function failed.
        LimitError
            Host functions exceeded what `graphpool.Limits` let them take; the outputs are not complete.
        """
        return self._forms.run(inputs, outputs)

    def run_many(
        self, requests: Iterable[Mapping[str, Any]], *, mask: str | None = None, most_rows: int = 8
    ) -> list[dict[str, Any]]:
        """Compute the outputs of many requests.

        Parameters
        ----------
        requests : iterable of mapping of str to array
            The inputs of each, as for `run`; shapes may differ.
        mask : str, optional
            The input, of shape (batch, length), whose zeros hide positions from the model, such as
            ``attention_mask``. Requests of like lengths are then filled up with zeros and run as one batch, and results
            cut to the request's own size; they may differ from those of `run` in the last places, as between kernels.
            All inputs have the batch, by the name that the mask has for it (`shapes` gives dimensions names) or as
            their first dimension, and every output has a row for each of its rows.
            None: requests run side by side, one on each thread of the engine, with the results of `run`.
        most_rows : int, default=8
            Of a batch.

        Returns
        -------
        results : list of dict of str to ndarray
            In the order of the requests.

        Raises
        ------
        InvalidArgumentError
            The mask is no input of that kind, an input does not say where its rows are, or a dimension of an output
            follows from rows or lengths in another way than to be as large.

        Otherwise as `run`, of the first request that fails, after all others have ended.

        Notes
        -----
        Threads: safe. Each request that runs has an arena of its own; where the engine's limit has no room for
        another, it waits. With a mask all requests are checked before anything runs.
        """
        from .request_batches import Padding, run_side_by_side

        jobs: list[Any] = list(requests) if hasattr(requests, "__iter__") else [requests]
        for job in jobs:
            check_is_mapping("requests: each of them", job, "names of inputs as keys, and arrays for them")
        if mask is None:
            return run_side_by_side(self.run, jobs, self._forms.stream)
        padding = Padding(self.inputs, self.outputs, self._forms.dims, mask, most_rows)
        checked = [padding.checked(request) for request in jobs]
        results: list[dict[str, Any]] = [{} for _ in checked]
        for batch in padding.batches(checked):
            if len(batch.numbers) == 1:
                results[batch.numbers[0]] = self.run(checked[batch.numbers[0]])
                continue
            for number, found in self._forms.in_turn(self._run_joined, padding, checked, batch):
                results[number] = found
        return results

    def _run_joined(self, padding: Padding, requests: Sequence[Any], batch: Batch) -> list[tuple[int, dict[str, Any]]]:
        """Results of the requests of a batch, by number; what they are joined in, and their parts, are counted."""
        copies = self._forms.copies
        joined = copies.call(padding.join, requests, batch)
        axes = padding.axes(self.specialise(joined))
        return copies.call(list, padding.split(self.run(joined), batch, axes))

    def session(self, state: Mapping[str, str] | None = None, capacity: Mapping[str, Any] | None = None) -> Session:
        """Runs of which each finds the states that the one before has left, such as the caches of attention.

        Parameters
        ----------
        state : mapping of str to str, optional
            Output -> the input that it is in the next run. Default: `states`.
        capacity : mapping of str to int or tuple of int, optional
            Most that a dimension of the states becomes, by its name; or the largest shape of a state, by its input. It
            is needed for dimensions that grow and for those without a name; others are 1 if it does not say.

        Returns
        -------
        session : Session

        Raises
        ------
        InvalidArgumentError, InvalidDataTypeError, InvalidShapeError
            A name is unknown, an output cannot be the input, or a capacity is missing or does not fit.
        OutOfMemoryError
            The engine's budget has no room for the states; nor, where the shapes of the other inputs are known, for
            the last run that they have room for. `smallest_limit` would do.
        StateError
            The model is closed.
        UnsupportedError
            The engine is a GPU.
        """
        from .session import Session

        self._forms.cache.check_open()
        if not self.engine.device.forms.vary:
            hint = "run the model with its states as inputs, or on an engine of kind cpu"
            raise UnsupportedError(explain(f"sessions on an engine of kind {self.engine.kind}", hint=hint))
        names, sizes = self.states if state is None else state, {} if capacity is None else capacity
        return self._forms.in_turn(Session, self, names, sizes)

    @property
    def states(self) -> dict[str, str]:
        """Outputs that are inputs of the next run, as their names say: ``present...`` becomes ``past...``."""
        from .session_states import find_states

        return find_states(self.inputs, self.outputs)

    # ---- what is known of it

    @property
    def declared_shapes(self) -> Mapping[str, Any] | None:
        """The ranges of sizes that were given as `shapes`."""
        shapes: Mapping[str, Any] | None = self._forms.arguments["shapes"]
        return shapes

    def specialise(self, shapes: Mapping[str, Any] | None = None) -> Executable:
        """Compile for given shapes ahead of the first run.

        Parameters
        ----------
        shapes : mapping of str to shape or array, optional
            For every input that is not static: its shape, or an array of it, which an input whose content decides
            shapes needs. None: all inputs are static.

        Returns
        -------
        executable : Executable
            It belongs to the model, which may close it when it meets many other shapes.

        Raises
        ------
        InvalidArgumentError, InvalidShapeError
            A shape is missing or does not fit.
        """
        return self._forms.at(shapes)

    def predict_peak(
        self, shapes: Mapping[str, Any] | None = None, *, sequential: bool = False, outputs: bool = True
    ) -> MemoryPeak:
        """What one run at a time takes of the engine's budget.

        That is the arena, scratch included, the constants, packed ones that are cached, the compiled programs, and the
        results, and the states of open sessions; inputs are the caller's, but for copies of arrays that are not dense,
        where such are given. A ``memory_limit`` of so many bytes will do if the results of one run are let go of before
        the next, and so will one without the packed ones: kernels for plain layouts run then. Where contents decide, as
        what a `NonZero` finds, it is the most that a run takes; nodes of which only a run tells that are named by
        ``unbounded``, and not in the number.

        Parameters
        ----------
        shapes : mapping of str to shape or array, optional
            As for `specialise`. None, for a model with declared shapes: all of these.
        sequential : bool, default=False
            Whether to tell what one stream would need, whatever the schedule.
        outputs : bool, default=True
            Whether the run makes its results; not where `run` is given arrays for all of them.

        Returns
        -------
        nbytes : MemoryPeak
            Its ``is_exact`` says whether a run takes just that; its ``mapped_nbytes`` and ``fixed_nbytes`` tell what
            the process takes beside that, its ``untouched_nbytes`` what of it stays out of memory, its
            ``resident_nbytes`` what the process takes in all.
            Of declared shapes the most that any takes, a `RangePeak`: its ``sizes`` and ``shapes`` say where. Programs
            of all forms compiled for them count, since they are kept. Unit: bytes.

        Raises
        ------
        InvalidArgumentError, InvalidShapeError
            A shape is missing or does not fit.
        OutOfMemoryError
            It is more than the engine's limit.
        """
        return self._forms.peak(shapes, outputs, sequential)

    def buffers(self, shapes: Mapping[str, Any] | None = None) -> list[BufferInfo]:
        """The buffers that lie in the arena of one run: what `graphpool.memory.plan` takes, and `write_csv` writes.

        Parameters
        ----------
        shapes : mapping of str to shape or array, optional
            As for `specialise`.

        Returns
        -------
        buffers : list of BufferInfo
            Tensors between the parts that are compiled apart, and the temporaries of each, by the steps that use them.
            Where those run on several streams their memory takes more than a plan by these lifetimes.

        Raises
        ------
        InvalidArgumentError, InvalidShapeError
            A shape is missing or does not fit.
        """
        return self._forms.buffers(shapes)

    def repeat(self, arrays: dict[str, Any], work: Callable[[Executable, Any], None]) -> None:
        """Hand the form for dense arrays of all inputs, and them, to what makes trips of a loop on it.

        Parameters
        ----------
        arrays : dict
            Input name -> array.
        work : callable
            Called with the form and the arrays.
        """
        self._forms.repeat(arrays, work)

    def hold(self, arrays: dict[str, Any]) -> AbstractContextManager[Executable | None]:
        """Keep the form for dense arrays of all inputs open, compiled if need be.

        Parameters
        ----------
        arrays : dict
            Input name -> array.

        Returns
        -------
        context manager
            Gives the form, for all arrays of these shapes; None where contents of inputs decide which form it is.
        """
        return self._forms.hold(arrays)

    def plain_form(self, arrays: Mapping[str, Any]) -> ModelForm:
        """The model specialised to the shapes of arrays of all inputs alone, to be compiled by the caller.

        That of a run serves other shapes too.

        Parameters
        ----------
        arrays : mapping of str to array
            Input name -> array.

        Returns
        -------
        form : ModelForm
            The caller owns it, and closes what it makes of it. Threads: safe. Cost: as of the first run of shapes, but
            for compiling.
        """
        return self._forms.plain(arrays)

    def last_forms(self) -> list[Executable]:
        """The form that was used last, and those of models inside it; none before the first run.

        Returns
        -------
        list of Executable
        """
        return self._forms.last_forms()

    def bound_run(self, shapes: Mapping[str, Any]) -> RunBound:
        """What runs take for given shapes, and for smaller ones, at most.

        Smaller shapes have programs of their own, as many as are kept, and some need another compilation, which is
        counted once.

        Parameters
        ----------
        shapes : mapping
            Input name -> shape.

        Returns
        -------
        bound : RunBound
        """
        return self._forms.bound_run(shapes)

    def read_weight(self, name: str) -> np.ndarray[Any, Any]:
        """The content of a constant under the importer's name.

        Parameters
        ----------
        name : str
            Of a constant that a form compiled so far reads; the importer may have folded others away.

        Returns
        -------
        array : ndarray
            Read-only; a fresh one where the weight is kept packed, for which unpacking gives back every bit.

        Raises
        ------
        InvalidArgumentError
            No form has such a constant.
        StateError
            The model is closed, or its file was changed in place.

        Notes
        -----
        Threads: safe.
        """
        return self._forms.read_weight(name)

    def respecialise(self) -> None:
        """Give up the compiled forms; the next run compiles, with the costs of steps that are known by then.

        Notes
        -----
        Threads: safe; runs that are going on finish with the form they have.
        """
        self._forms.clear()

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """Partitions of the form that was used last, in the order in which they run.

        Raises
        ------
        InvalidArgumentError
            No run was made yet, and not all inputs are static.
        """
        return self._forms.last().partitions

    def stats(self) -> ModelStats:
        """Counters of the model.

        Returns
        -------
        ModelStats
        """
        return self._forms.stats()

    # ---- sharing

    def packed_constants(self) -> dict[PackedKey, ConstantBuffer]:
        """The packed constants of all that is compiled, by names that hold in every process.

        Returns
        -------
        dict of PackedKey to ConstantBuffer

        Raises
        ------
        StateError
            Nothing is compiled, or the model is closed.

        Notes
        -----
        Threads: safe. Cost: a read of each weight, and packing of those that the constant tensor cache does not have.
        """
        self._forms.cache.check_open()
        if self.is_static:
            self._forms.at(None)
        if not self._memory.forms():
            hint = "run it, or call specialise, for the shapes to come"
            raise StateError(explain(f"nothing of {self.name!r} is compiled yet", hint=hint))
        return self._forms.packed_constants()

    def written_forms(self) -> tuple[str | None, list[tuple[Any, tuple[int, ...], bytes, list[Any]]]]:
        """What is compiled, for other processes.

        Returns
        -------
        context : str or None
            What a process must have in common; None where it cannot be for others.
        forms : list of (pattern, sizes, bytes, contents)
            As of `StoredForm`, with the contents of the constants.

        Notes
        -----
        Threads: safe.
        """
        return self._forms.written_forms()

    def use_packed(self, source: PackedSource) -> None:
        """Take packed weights from a store from now on; those of the engine's memory that it has too are given up.

        Parameters
        ----------
        source : PackedStore or SealedStore
            Where they are looked for.

        Notes
        -----
        Threads: safe; what runs are using now stays until it is evicted.
        """
        self._look_in(source)
        self._forms.look_again_for_constants()

    def _look_in(self, source: PackedSource | None) -> None:
        """Look for packed weights in this place instead of the one before."""
        if source is not None:
            borrow_packed(source)
        source, self._packed = self._packed, source
        if source is not None:
            return_packed(source)

    # ---- life

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._forms.cache.is_closed

    def trim(self) -> int:
        """Give back idle arenas, results that nobody holds, and programs for other shapes; returns their bytes.

        Programs that can be had again without compilation are meant, of loops and branches too; no run uses them now.

        Returns
        -------
        int
        """
        return self._forms.trim()

    def close(self) -> None:
        """Give all memory back; runs that are going on finish first, new ones are refused. Idempotent."""
        if self._forms.close() and self._owns_engine:
            self.engine.close()
        self._look_in(None)
        trim_heap()  # what described the model left holes

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles without what was compiled: it is compiled anew, or found in the caches, at the first run.

        Weights that lie in mapped files are pickled by the file's path and content, which is checked when the pickle is
        loaded; with protocol 5 and a ``buffer_callback`` other weights stay out of band. What is loaded has an engine
        of its own, which it shares with all that was pickled together; close the model, and the engine if it is not the
        model's.
        """
        self._forms.cache.check_open()
        model = partial(
            Model, **self._forms.arguments, owns_engine=self._owns_engine, name=self.name, weights=self.weights,
            schedule=self.options.policy, streams=self.options.streams, metadata=self.metadata,
            priority=self.priority,
        )  # fmt: skip
        return model, (self.inputs, self.outputs, self._forms.specialise, self.engine)

    def __copy__(self) -> Model:
        """A model of its own on the same engine, which stays this one's."""
        model, given = self.__reduce__()
        copied: Model = model(*given, owns_engine=False)
        return copied

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "_forms") and not self._forms.cache.is_closed and not is_finalizing():
            warnings.warn(f"{self!r} was never closed", ResourceWarning, stacklevel=1, source=self)
            self.close()

    def __repr__(self) -> str:
        ins, outs = (
            ", ".join(f"{port.name}: {describe_port(port)}" for port in side) for side in (self.inputs, self.outputs)
        )
        state = ", closed" if self._forms.cache.is_closed else ""
        return f"Model({self.name!r}, ({ins}) -> ({outs}){state})"

    def _repr_html_(self) -> str:
        """For notebooks."""
        from graphpool.drawing import describe_size
        from graphpool.notebook import brief_list, html_table

        ins, outs = ([f"{port.name}: {describe_port(port)}" for port in side] for side in (self.inputs, self.outputs))
        rows: dict[str, object] = {"inputs": brief_list(ins), "outputs": brief_list(outs)}
        rows["schedule"] = f"{self.options.policy}, {self.options.streams} streams at most"
        if self.is_closed:
            return html_table(f"Model {self.name}, closed", rows)
        stats = self.stats()
        rows |= {
            "runs": stats.runs,
            "specialised forms": stats.forms,
            "arenas": describe_size(stats.arena_nbytes),
            "constants": describe_size(stats.constants_nbytes),
            "packed constants": describe_size(stats.cached_nbytes),
            "programs": describe_size(stats.programs_nbytes),
        }
        return html_table(f"Model {self.name}", rows)
