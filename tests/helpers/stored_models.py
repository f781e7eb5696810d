"""Models that are compiled, and the same models as a process has them that finds them in a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import graphpool as gp
from graphpool.cache import PackedStore, set_packed_store, set_program_folder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    Requests = Sequence[Mapping[str, Any]]

__all__ = ["as_another_process", "facts_of", "load_and_run", "programs_in", "random_feeds", "without_store"]


def as_another_process(folder: Path) -> None:
    """A store object that has noted nothing: without weights if the folder is called ``programs``."""
    without_store()
    if folder.name == "programs":
        set_program_folder(folder)
    else:
        set_packed_store(PackedStore(folder))


def without_store() -> None:
    """Compile from now on."""
    set_packed_store(None)
    set_program_folder(None)


def programs_in(folder: Path) -> list[Path]:
    """The files of compiled programs."""
    return sorted(folder.glob("*.program"))


def bytes_of(value: Any) -> Any:
    """A result, exactly."""
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return str(value.dtype), value.shape, value.tobytes()
    return repr(value)


def facts_of(model: gp.Model, requests: Requests) -> list[Any]:
    """All that users may see of a model and its runs."""
    found: list[Any] = [model.name, model.inputs, model.outputs, model.metadata, repr(model), model.is_static]
    for inputs in requests:
        found.append({name: bytes_of(value) for name, value in model.run(inputs).items()})
        form = model.specialise(inputs)
        peaks = [int(model.predict_peak(inputs, sequential=one, outputs=all_)) for one in (0, 1) for all_ in (0, 1)]
        found += [*peaks, model.stats(), model.engine.budget.in_use, form.arena_nbytes, dict(form.offsets)]
        found += [form.conditions, form.streams, form.nprograms, form.buffers(), form.inner_bound()]
        found.append([step.compiled.program.describe() for step in form.steps if _has_program(step)])
    return found


def described(model: gp.Model, requests: Requests) -> list[Any]:
    """What is made of the model's file where somebody asks, for each request."""
    found = []
    for inputs in requests:
        form = model.specialise(inputs)
        ports = [(p.kind, len(p.ops), p.input_ports, p.output_ports) for p in form.partitions]
        tensors = {i: (t.dtype, t.shape, t.strides) for i, t in form.tensors.items()}
        found += [ports, form.implementations, form.fallbacks, tensors, form.form.names.get(0)]
    return found


def _has_program(step: Any) -> bool:
    return step.compiled is not None and getattr(step.compiled, "primitive", None) is not None


def load_and_run(path: Path, requests: Requests, describes: bool = True, **options: Any) -> tuple[list[Any], bool]:
    """The facts of a model that is loaded and run, and whether its file was parsed before `described` asked for it."""
    with gp.onnx.load(path, **options) as model:
        found = facts_of(model, requests)
        specialise = model._forms.specialise
        was_read = getattr(specialise, "_real", specialise) is not None
        return found + (described(model, requests) if describes else []), was_read


def random_feeds(model: gp.Model, sizes: Mapping[Any, int], seed: int = 0) -> dict[str, Any]:
    """Inputs of a model, where dimensions of these names have these sizes, and others 3."""
    rng = np.random.default_rng(seed)
    found = {}
    for port in model.inputs:
        shape = [dim if isinstance(dim, int) else sizes.get(dim, 3) for dim in port.shape or ()]
        dtype = port.dtype.numpy
        values = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
        found[port.name] = values.astype(dtype)
    return found
