"""`load`: the door of the package."""

from __future__ import annotations

import os
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphpool._collection import collection_paused
from graphpool._dataclasses import replace
from graphpool.errors import InvalidArgumentError, UnsupportedError, brief, check_choice, explain
from graphpool.graph.backend import backends_for
from graphpool.graph.graph import FPMATH_MODES, PREFERENCES
from graphpool.limits import Limits
from graphpool.mapped_file import check_mapping
from graphpool.runtime import Engine, Model, host_device  # noqa: F401 - engines import the last when they are made
from graphpool.runtime.heap import trim_heap
from graphpool.runtime.load_room import LoadRoom
from graphpool.runtime.model import WEIGHTS_MODES
from graphpool.runtime.model_memory import check_priority
from graphpool.runtime.scheduling import parse_options

from .stored_model import open_stored

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .files import ModelFiles


def load(
    source: str | os.PathLike[str] | bytes | Any,
    *,
    engine: Engine | None = None,
    threads: int | None = None,
    memory_limit: int | str | None = None,
    fallback: bool = True,
    schedule: str | None = None,
    streams: int | None = None,
    prefer: str = "latency",
    fpmath: str = "strict",
    weights: str = "scoped",
    mapping: str = "map",
    limits: Limits | None = None,
    host_deadline_s: float | None = None,
    untrusted: bool = False,
    shapes: Mapping[str, Any] | None = None,
    as_inputs: Sequence[str] = (),
    priority: float = 1.0,
    capacity: int = 16,
) -> Model:
    """Make a `Model` of an ONNX model.

    Parameters
    ----------
    source : path, bytes or onnx.ModelProto
        External data is looked for beside the path.
    engine : Engine, optional
        Where the model runs; by default an engine of its own, which it closes.
    threads : int, optional
        Of the own engine.
    memory_limit : int or str, optional
        Of the own engine: bytes, or a string such as ``"512MiB"``.
    fallback : bool, default=True
        Whether ops that graphpool does not have are run by the host (NumPy, or ONNX's reference evaluator). It always
        runs what no kernel could: texts, maps, and a ``OneHotEncoder`` for which another category is an error.
    schedule, streams : optional
        How steps are placed on streams, and on how many: see `Model`.
    prefer : {"latency", "memory"}, default="latency"
        Whether convolutions may multiply fewer times on larger weights, and keep quantised ones as floats: see `Graph`.
    fpmath : {"strict", "bf16", "f16", "tf32", "int8", "any"}, default="strict"
        Precision to which float32 products may be lowered: see `Graph`.
    weights : {"scoped", "cached", "packed"}, default="scoped"
        What becomes of packed weights, and of the plain ones in memory: see `Model`.
    mapping : {"map", "copy"}, default="map"
        Whether the weights of a file stay there, mapped, or are read into memory. A mapped file must not be written in
        place while the model is open: replace it by renaming another one.
    limits : Limits, optional
        What the file may ask for, checked before anything is done; by default those for trusted files.
    host_deadline_s : float, optional
        What host functions may take in one run, instead of what `limits` says. Unit: seconds.
    untrusted : bool, default=False
        Whether the file comes from a stranger: `limits` are then ``Limits.strict()`` unless given, and the host runs
        nothing, texts and maps neither; no programs are kept in the user's cache folder. `SECURITY.md` says what is
        promised.
    shapes : mapping of str to int, (int, int) or sequence, optional
        Ranges of the sizes to come, by the names of the file's dimensions or by input: see `Model`.
    as_inputs : sequence of str, optional
        Initialisers that the file lists as inputs too, and that each run gives instead of the file; all others are
        constants.
    priority : float, default=1.0
        What the model is worth beside others of the engine, see `Model.priority`.
    capacity : int, default=16
        Sets of shapes whose programs are kept; those of others are made again in a fraction of a millisecond.

    Returns
    -------
    model : Model
        Compiled already if all input shapes are given in the file or declared, else at the first run of new shapes.

    Raises
    ------
    InvalidArgumentError
        Not an ONNX model, truncated or malformed; external data is missing; an engine was given together with
        `threads` or `memory_limit`; no such schedule, preference, float mode, mode of weights or mapping; `shapes` has
        a name that no dimension or input has, or no range; `as_inputs` one that is no such initialiser.
    LimitError
        The model asks for more than `limits` allow; the message names the limit and the node.
    OutOfMemoryError
        Constants, programs and arena do not fit `memory_limit`, or what a control group has left; with declared shapes,
        for the largest of them: ``largest`` has the largest upper end of each range that would fit.
    UnsupportedError
        The package onnx is not installed; or, with ``fallback=False``, an op that graphpool does not have, which the
        message names.
    FileNotFoundError
        There is no such file.

    Notes
    -----
    Ownership: the source is not changed. Weights of 1 KiB and more in a file or in ``bytes`` (or a read-only
    memoryview) are read where they lie, so the model keeps the file mapped, or the bytes alive; those of a
    ``bytearray`` or a ModelProto are copied once. Close the model, or use it as a context manager.
    Threads: safe. Cost: reading the weights, and compilation; beside the source a load takes the packed weights, the
    copies, and of a file the largest weight. Python's garbage
    collector pauses meanwhile, for the whole process: see `graphpool._collection`. What is compiled of a file is kept
    in the user's cache folder for the next process that loads it, or where ``GRAPHPOOL_PROGRAM_FOLDER`` says.

    Examples
    --------
    >>> with gp.onnx.load("model.onnx", memory_limit="512MiB") as model:   # doctest: +SKIP
    ...     outputs = model.run({"input": image})
    """
    if engine is not None and not isinstance(engine, Engine):
        raise InvalidArgumentError(explain("engine", accepted="an Engine, or None", got=type(engine).__name__))
    if engine is not None and (threads is not None or memory_limit is not None):
        raise InvalidArgumentError(
            explain("threads and memory_limit belong to the engine", hint="give them to the engine, or leave it out")
        )
    check_choice("prefer", prefer, PREFERENCES)
    check_choice("fpmath", fpmath, FPMATH_MODES)
    check_choice("weights", weights, WEIGHTS_MODES)
    check_priority(priority)
    check_mapping(mapping)
    if limits is not None and not isinstance(limits, Limits):
        raise InvalidArgumentError(explain("limits", accepted="a graphpool.Limits, or None", got=brief(limits)))
    if not isinstance(untrusted, bool):
        raise InvalidArgumentError(explain("untrusted", accepted="True or False", got=brief(untrusted)))
    if isinstance(as_inputs, str) or not all(isinstance(name, str) for name in as_inputs):
        raise InvalidArgumentError(explain("as_inputs", accepted="a sequence of names", got=brief(as_inputs)))
    opened = tuple(sorted(set(as_inputs)))
    if limits is None:
        limits = Limits.strict() if untrusted else Limits()
    if host_deadline_s is not None:
        limits = replace(limits, host_deadline_s=host_deadline_s)
    owned = engine is None
    used = Engine("cpu", threads=threads, memory_limit=memory_limit) if engine is None else engine

    host = "none" if untrusted else "any" if fallback else "objects"

    def read(given: Any = source, files: ModelFiles | None = None) -> Any:
        read_model, specialiser_of, copied_nbytes = importer()
        with used.room.taking(copied_nbytes(given, mapping), "loading"):
            read_source = read_model(given, mapping, limits, used.host_budget.limit, files, opened)
        return specialiser_of(read_source, host, prefer, fpmath, used.kind)

    options = {
        "schedule": schedule, "streams": streams, "weights": weights, "shapes": shapes, "priority": priority,
        "capacity": capacity,
    }  # fmt: skip
    try:
        if mapping == "map" and isinstance(source, (str, os.PathLike)):
            placing = parse_options(schedule, streams)
            asked = repr((host, prefer, fpmath, limits, shapes, opened))
            stored = partial(open_stored, Path(source), used, placing, weights, asked, read, not untrusted)
            return used.queue.load(lambda: _load(stored, used, owned, options))
        return used.queue.load(lambda: _load(read, used, owned, options))
    except BaseException:
        if owned:
            used.close()
        raise


@collection_paused()
def _load(read: Callable[[], Any], engine: Engine, owned: bool, options: Mapping[str, Any]) -> Model:
    """A model of what is read; what was taken is given back where that fails."""
    room, model = LoadRoom(engine.host_budget, "loading"), None
    specialiser = room.call(read)
    trim_heap()  # what was parsed and checked is more than is kept of it: compilation takes that room anew
    head = specialiser.head
    try:
        with room.refusing():
            model = Model(
                head.inputs,
                head.outputs,
                specialiser,
                engine,
                deciding=head.deciding,
                owns_engine=owned,
                name=head.name,
                metadata=head.metadata,
                **options,
            )
            if model.is_static:
                model.specialise()
    except BaseException:
        if model is not None:
            model.close()
        raise
    return model


@cache
def importer() -> tuple[Any, Any, Any]:
    """`read_model`, `Specialiser` and `copied_nbytes`, or UnsupportedError without the package onnx.

    All that loading takes is imported. That package itself is imported for what few models need: its checker where a
    model may be malformed, its inference, definitions of operators, the reference evaluator.
    """
    if find_spec("onnx") is None:
        hint = "install the extra graphpool[onnx]"
        raise UnsupportedError(explain("graphpool.onnx needs the package onnx", hint=hint))
    from graphpool.runtime import partition_runs  # noqa: F401 - not by those who find what was compiled

    from .source import copied_nbytes, read_model
    from .specialise import Specialiser

    backends_for("cpu")
    return read_model, Specialiser, copied_nbytes
