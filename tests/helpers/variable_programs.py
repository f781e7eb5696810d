"""Compares what a model compiled for sizes that vary gives for other shapes with a fresh compilation for them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._sizes import Trace
from graphpool.errors import GraphpoolError
from graphpool.runtime.executable import Executable
from graphpool.runtime.variable_form import SizeName, VariableForm
from graphpool.runtime.variable_forms import numbers_in, symbols_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from graphpool.runtime import Engine, Model

__all__ = ["Comparison", "make_unknown", "other_shapes"]


class Comparison:
    """A model with unknown sizes, compiled for the shapes of some inputs.

    `dims` says what of them may vary, as `Symbols` takes it; numbers in `deciding` inputs may too. `counts` tells how
    many shapes were alike, how many were but that sizes are computed where a compilation for plain numbers has
    constants or shares more memory, how many need a compilation of their own, and how many nothing compiles.
    """

    def __init__(
        self, specialise: Any, engine: Engine, dims: Mapping[str, Any], inputs: Mapping[str, Any],
        deciding: Collection[str] = (),
    ) -> None:  # fmt: skip
        self._specialise, self._engine, self.counts = specialise, engine, Counter[str]()
        self._deciding, self._dims = {name: inputs[name] for name in deciding}, dims
        self.shapes: dict[Any, Any] = {name: array.shape for name, array in inputs.items()}
        self.shapes |= numbers_in(self._deciding)
        self.form, self._variable = self._compile(self.shapes)

    def _compile(self, shapes: Any) -> tuple[Executable, VariableForm]:
        """For sizes that vary, and are these now."""
        trace, plain = Trace(), {name: shape for name, shape in shapes.items() if not isinstance(name, SizeName)}
        symbols, sized, contents = symbols_of(self._dims, plain, self._contents(shapes), trace)
        variable = VariableForm(trace, symbols, self._engine)
        return Executable(self._specialise(sized, contents), self._engine, variable=variable), variable

    def _contents(self, shapes: Any) -> dict[str, Any]:
        """The deciding contents that stand among shapes."""
        return {
            name: np.array(shapes.get(SizeName("content", name), array.reshape(-1)), array.dtype).reshape(array.shape)
            for name, array in self._deciding.items()
        }

    def other_contents(self) -> list[dict[Any, Any]]:
        """The shapes of the compilation with each number of a content changed in turn."""
        return [
            {**self.shapes, content: (*numbers[:k], other, *numbers[k + 1 :])}
            for content, numbers in numbers_in(self._deciding).items()
            for k, number in enumerate(numbers[:3])
            for other in {number + 1, number - 1, 3 * number, 1, 0, -1} - {number}
        ]

    @classmethod
    def of(cls, model: Model, inputs: Mapping[str, Any]) -> Comparison:
        """For a model."""
        dims = {port.name: port.shape for port in model.inputs}
        return cls(model._forms.specialise, model.engine, dims, inputs, model._forms.deciding)

    def compare(self, others: Iterable[Any]) -> None:
        """Assert that each set of shapes gives the same programs both ways, or is left to a fresh compilation."""
        assert describe(self.form) in (self._fresh(self.shapes), self._fresh_varying(self.shapes))
        numbers = numbers_in(self._deciding)
        for given in [*others, *self.other_contents()]:
            shapes = {**numbers, **given}
            if any(shapes[name] != array.shape for name, array in self._deciding.items()):
                continue
            wanted = self._fresh(shapes)
            found = self._resized(shapes)
            if found is None:
                self.counts["declined" if wanted else "refused"] += 1
                continue
            assert wanted is not None, (shapes, "accepted, and no compilation takes it")
            if found == wanted:
                self.counts["alike"] += 1
            else:
                assert found == self._fresh_varying(shapes), (self.shapes, shapes)
                self.counts["alike but for sizes"] += 1

    def _fresh(self, shapes: Any) -> Any:
        try:
            executable = Executable(self._specialise(shapes, self._contents(shapes)), self._engine)
        except GraphpoolError:
            return None
        try:
            return describe(executable)
        finally:
            executable.close()

    def _fresh_varying(self, shapes: Any) -> Any:
        executable, _ = self._compile(shapes)
        try:
            return describe(executable)
        finally:
            executable.close()

    def _resized(self, shapes: Any) -> Any:
        for partition in self._variable._partitions:
            partition._plans.clear()  # else one that is large enough would serve again
        executable = self.form.resized(shapes)
        if executable is None:
            return None
        try:
            return describe(executable)
        finally:
            executable.close()

    def close(self) -> None:
        """Close the form."""
        self.form.close()

    def __enter__(self) -> Comparison:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def describe(executable: Executable) -> Any:
    """All that a run depends on, but for the addresses in parameter blocks."""
    programs = []
    for compiled in executable.compiled:
        calls = zip(compiled.program.describe(), compiled.program.calls, strict=True)
        steps = [(*step[:2], None, *step[3:]) if call.keep else step for step, call in calls]
        ports = [(port.shape, port.strides) for port in (*compiled.inputs, *compiled.outputs)]
        programs.append((steps, compiled.program.arena_nbytes, ports))
    places = [executable.offsets.get(i) for step in executable.steps for i in step.outputs]
    return programs, executable.arena_nbytes, places


def make_unknown(model: Any) -> Any:
    """The ONNX model with all sizes of inputs and outputs unknown."""
    for value in (*model.graph.input, *model.graph.output):
        if value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape"):
            for dim in value.type.tensor_type.shape.dim:
                dim.ClearField("dim_value")
                dim.ClearField("dim_param")
    return model


def other_shapes(inputs: Mapping[str, Any]) -> list[dict[str, tuple[int, ...]]]:
    """Sizes that several inputs may share, changed together: by one, threefold, to 1 and to 0."""
    sizes = sorted({size for array in inputs.values() for size in array.shape if size > 1})
    changes = [(size, size + 1) for size in sizes[:3]] + [(size, k) for size in sizes[:1] for k in (3 * size, 1, 0)]
    return [
        {name: tuple(new if size == old else size for size in array.shape) for name, array in inputs.items()}
        for old, new in changes
    ]
