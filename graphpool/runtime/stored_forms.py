"""Compiled forms of a model that other processes have made, or may find: of what they are, and how constants are told.

Who stores forms knows the model by its content. Among its forms one is told by the shapes that it was compiled for, by
which of their sizes may vary, and by the contents that decide shapes.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import cache, partial
from math import prod
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from graphpool import config
from graphpool._dataclasses import NamedTuple
from graphpool._kernels.core._dispatch import isas
from graphpool._sizes import hint_of, is_variable
from graphpool._version import __version__
from graphpool.cache.identity import digest_of, digest_of_text
from graphpool.errors import OutOfMemoryError
from graphpool.fork import Locked
from graphpool.graph.backend import are_own_backends
from graphpool.log import compile_log
from graphpool.typing import DataType

from ._package_files import look_at_sources
from .constant_memory import Reading, memory_of, read_as, reading_of
from .constant_part import files_of, place_in_mapping
from .costs import has_costs
from .executable import kept_weights
from .form_record import Described, UnwritableError, read_form
from .form_steps import divide
from .variable_form import SizeName

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from weakref import ReferenceType

    from graphpool.mapped_file import MappedFile

    from .engine import Engine
    from .executable import Executable
    from .form_record import ReadSteps
    from .model_form import ModelForm
    from .model_port import ModelPort
    from .scheduling import ScheduleOptions
    from .variable_form import VariableForm

__all__ = [
    "FormRequest", "ModelHead", "SharedForms", "StoredForm", "StoredForms", "StoredSpecialiser", "build_name",
    "context_of",
]  # fmt: skip

_MOST_FORMS = 8
"""To keep of one model: those that were compiled last."""


class ModelHead(NamedTuple):
    """What of a model does not depend on shapes."""

    name: str
    inputs: tuple[ModelPort, ...]
    outputs: tuple[ModelPort, ...]
    deciding: tuple[str, ...]
    metadata: Any


def context_of(engine: Engine, options: ScheduleOptions, weights: str) -> str | None:
    """All that a compilation depends on beside the model; None where its result cannot be kept for others."""
    is_plain = engine.kind == "cpu" and engine.planner is None and engine.context is None and weights != "packed"
    if not is_plain or not are_own_backends(engine.kind) or config.get("graph_dump") is not None or has_costs():
        return None
    own = engine.threads, engine.memory_limit is None, weights, options.policy, options.streams
    return repr((__version__, isas(), sorted(config.get("impl").items()), own))


@cache
def build_name() -> str:
    """A name for the files of the package: a checkout changes without its version. Cost: a look at each of them."""
    package = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120 - no pathlib
    return digest_of_text(b"\0".join(look_at_sources(os.fsencode(package)))).hex()


class FormRequest(NamedTuple):
    """A form that is to be compiled: shapes with sizes where they vary, contents that decide, and how it is made."""

    shapes: Mapping[str, Any]
    deciding: Mapping[str, np.ndarray[Any, Any]]
    is_planned: bool
    variable: VariableForm | None
    engine: Engine
    options: ScheduleOptions
    weights: str

    @property
    def key(self) -> tuple[Any, tuple[int, ...]]:
        """What forms are told by: what all forms have in common that may serve it, and the sizes that vary."""
        sizes: dict[int, int] = {}

        def told(dim: Any) -> Any:
            if not is_variable(dim):
                return dim
            sizes[dim.number] = hint_of(dim)
            return f"s{dim.number}"

        dims = [(name, None if shape is None else tuple(map(told, shape))) for name, shape in self.shapes.items()]
        contents = []
        for name, array in self.deciding.items():
            items = np.ascontiguousarray(array).reshape(-1)
            content = tuple(map(told, items)) if array.dtype == object else digest_of(items.view(np.uint8))
            contents.append((name, array.dtype.str, array.shape, content))
        how = self.is_planned, self.variable is not None
        return (how, tuple(dims), tuple(contents)), tuple(sizes.values())

    @property
    def plain_sizes(self) -> dict[Any, Any]:
        """The shapes that it is compiled for, and the contents that are sizes."""
        pairs = self.shapes.items()
        sizes: dict[Any, Any] = {name: None if shape is None else tuple(map(hint_of, shape)) for name, shape in pairs}
        for name, array in self.deciding.items():
            if array.dtype == object and not any(isinstance(item, str) for item in array.flat):
                sizes[SizeName("content", name)] = tuple(map(hint_of, array.reshape(-1)))
        return sizes


class StoredForm(NamedTuple):
    """A form as a buffer, maybe of a mapping, what tells it from others, and its constants as of `tell_content`."""

    pattern: Any
    sizes: tuple[int, ...]
    data: Any
    constants: tuple[Any, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredForm, (self.pattern, self.sizes, PickleBuffer(self.data), self.constants)


class StoredForms:
    """The forms of one model that somebody has stored, for one way to compile.

    Parameters
    ----------
    context : str
        As of `context_of`.

    Attributes
    ----------
    forms : list of StoredForm
        The last one first.
    files : list of MappedFile
        In which constants lie.
    names_weights : bool
        Whether packed constants are kept too, by name.
    is_late : bool
        Whether forms are kept a while after they were compiled, since nobody asked for that.
    """

    names_weights = True
    is_late = False

    def __init__(self, context: str) -> None:
        self.context = context
        self.forms: list[StoredForm] = []
        self.files: list[MappedFile] = []
        self._contents: dict[Any, Any] = {}

    def find(
        self, request: FormRequest, specialise: Callable[..., ModelForm]
    ) -> tuple[ModelForm, ReadSteps, VariableForm | None] | None:
        """The form, read; one for other sizes that serves these too; None if there is none."""
        if not self.forms or not self.takes(request):
            return None
        pattern, sizes = request.key
        alike = [form for form in self.forms if form.pattern == pattern]
        exact = [form for form in alike if form.sizes == sizes]
        for form in exact or ([] if request.is_planned else alike):
            try:
                found = self._read(form, request, specialise)
            except OutOfMemoryError:
                raise
            except Exception as error:  # whatever a file of another build may hold
                compile_log.info("stored form is compiled anew: %s", error)
                continue
            variable = found[2]
            if exact or (variable is not None and variable.values(request.plain_sizes) is not None):
                return found
        return None

    def _read(
        self, form: StoredForm, request: FormRequest, specialise: Callable[..., ModelForm]
    ) -> tuple[ModelForm, ReadSteps, VariableForm | None]:
        for file in self.files:
            file.check()
        make = partial(specialise, request.shapes, request.deciding)
        divided = partial(divide, options=request.options, threads=request.engine.threads)
        described = Described(make, request.variable, divided)
        weights = kept_weights(request.weights)
        return read_form(form.data, request.engine, weights, lambda: self._contents_of(form), described)

    def _contents_of(self, form: StoredForm) -> list[Any]:
        """The constants of a form; those that last are one for all forms, and as many as the importer has."""
        found, seen = [], Counter[Any]()
        for told in form.constants:
            key = told, seen[told]
            seen[told] += 1
            content = self._contents.get(key)
            if content is None:
                content = bring_content(told, self.files)
                if told[0]:
                    self._contents[key] = content
            found.append(content)
        return found

    def lasting(self) -> list[Any]:
        """Contents that stay in memory while no form has them."""
        return list(self._contents.values())

    def takes(self, request: FormRequest) -> bool:
        """Whether such a form may be among them."""
        return self.context == context_of(request.engine, request.options, request.weights)

    def keep(self, executable: Executable, specialise: Any) -> bool:
        """Put a form that was compiled before the others; False for what cannot be written.

        `specialise` is the importer's, which keeps some of the contents.
        """
        kept = {id(content) for content in specialise.lasting()}
        try:
            with executable.held():
                data, contents = executable.written(self.names_weights)
            constants = tuple([(id(content) in kept, *tell_content(content, self.files)) for content in contents])
        except UnwritableError as error:
            compile_log.info("form is not stored, because of %s", error)
            return False
        assert executable.key is not None  # else it is not to be stored
        form = StoredForm(*executable.key, data, constants)
        others = [other for other in self.forms if (other.pattern, other.sizes) != (form.pattern, form.sizes)]
        self.forms = [form, *others[: _MOST_FORMS - 1]]
        return True


class SharedForms(StoredForms):
    """Forms that came with a handle; `constants` of each are numbers among `contents`."""

    def __init__(self, context: str, forms: Sequence[StoredForm], contents: Sequence[Any]) -> None:
        super().__init__(context)
        self.forms, self._arrays, self.files = [*forms], contents, files_of(contents)

    def _contents_of(self, form: StoredForm) -> list[Any]:
        """The constants of a form."""
        return [self._arrays[number] for number in form.constants]

    def lasting(self) -> list[Any]:
        """Contents that stay in memory while no form has them."""
        return list(self._arrays)

    def keep(self, executable: Executable, specialise: Any) -> bool:
        """False: handles do not change."""
        return False


class StoredSpecialiser(Locked):
    """Specialises a model of which compiled forms are stored: the importer is called where none is.

    Parameters
    ----------
    head : ModelHead or None
        None where the model is known otherwise.
    make : callable
        Reads the model; gives what specialises it.
    forms : StoredForms

    Notes
    -----
    Threads: one at a time takes forms and keeps them; whoever asks for a graph may call meanwhile.
    """

    takes_sizes = True

    def __init__(self, head: ModelHead | None, make: Callable[[], Any], forms: StoredForms) -> None:
        super().__init__()
        self.head, self._make, self._forms = head, make, forms
        self._real: Any = None
        self._late: list[ReferenceType[Executable]] = []

    def _reset_in_child(self) -> None:
        super()._reset_in_child()
        self._late = []  # the parent keeps them

    @property
    def real(self) -> Any:
        """What specialises the model, which is read now if it was not."""
        with self._lock:
            if self._real is None:
                self._real = self._make()
            return self._real

    def __call__(self, shapes: Mapping[str, Any], contents: Mapping[str, Any]) -> ModelForm:
        """As of the importer."""
        with self._lock:
            form: ModelForm = self.real(shapes, contents)
        return form

    def lasting(self) -> list[Any]:
        """The contents that stay in memory while no form has them."""
        own = [] if self._real is None else self._real.lasting()
        return [*own, *self._forms.lasting()]

    def recall(
        self, request: FormRequest, specialise: Callable[..., ModelForm]
    ) -> tuple[ModelForm, ReadSteps, VariableForm | None] | None:
        """A form that is stored, instead of one that would be compiled; None if there is none.

        `specialise` is called where somebody asks for its graph.
        """
        with self._lock:
            return self._forms.find(request, specialise)

    def keep(self, request: FormRequest, executable: Executable) -> bool:
        """Store a form that was compiled, if it can be; whether that is left to `keep_late`."""
        if not self._forms.takes(request):
            return False
        with self._lock:
            self._late.append(ref(executable))
        if not self._forms.is_late:
            self.keep_late()
        return self._forms.is_late

    def keep_late(self) -> None:
        """Store the forms that were left, if they are still there."""
        if not self._late:
            return
        with self._lock:
            late, self._late = self._late, []
            for form in filter(None, (reference() for reference in late)):
                try:
                    self._forms.keep(form, self.real)
                except Exception as error:  # the form is there, whatever becomes of the store
                    compile_log.info("form is not stored: %s", error)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles as the importer's does."""
        return _itself, (self.real,)


def _itself(real: Any) -> Any:
    return real


# ---- contents of constants


def tell_content(content: Any, files: list[MappedFile]) -> tuple[Any, ...]:
    """Where a constant lies in one of the files, or its bytes; raises `UnwritableError` for what is no array."""
    reading = reading_of(content)
    if reading is not None:
        return (*tell_content(memory_of(content), files), *reading)
    if type(content) is not np.ndarray:
        raise UnwritableError(f"a constant of type {type(content).__name__}")
    dtype = _name_of(content.dtype)
    mapped, offset = place_in_mapping(content) or (None, 0)
    number = next((k for k, file in enumerate(files) if file is mapped), None)
    if number is not None:
        return number, offset, dtype, content.shape
    if mapped is not None:
        raise UnwritableError("a constant in another file")
    return None, np.ascontiguousarray(content).tobytes(), dtype, content.shape


def bring_content(told: tuple[Any, ...], files: Sequence[MappedFile]) -> Any:
    """The constant that `tell_content` describes, behind whether it lasts; read-only."""
    _, number, place, dtype, shape, *reading = told
    kind = dtype.numpy if isinstance(dtype, DataType) else np.dtype(dtype)
    if number is None:
        array = np.frombuffer(place, np.uint8).copy().view(kind).reshape(shape)
    else:
        nbytes = prod(shape) * kind.itemsize
        array = np.frombuffer(files[number], np.uint8, nbytes, place).view(kind).reshape(shape)
    array.setflags(write=False)
    return read_as(array, Reading(*reading) if reading else None)


def _name_of(dtype: np.dtype[Any]) -> Any:
    if dtype.hasobject:
        raise UnwritableError("a constant of objects")
    return dtype.str if np.dtype(dtype.str) == dtype else DataType.parse(dtype)
