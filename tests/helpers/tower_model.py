"""A small model of three towers, which a schedule can run side by side, with a host function at the end."""

from __future__ import annotations

from typing import Any

import graphpool as gp
from graphpool.runtime import Model
from graphpool.runtime.model_form import ModelForm
from graphpool.runtime.model_port import ModelPort
from graphpool.typing import DataType

__all__ = ["share_always", "tower_model", "towers"]

PORTS = ModelPort("x", DataType.F32, (96, 64)), ModelPort("z", DataType.F32, (96, 192))


def towers(shapes: Any, values: Any) -> ModelForm:
    """Three towers of softmax from one input, a host function at the end."""
    x, y, z = (gp.LogicalTensor(k, "f32", shape) for k, shape in enumerate([(96, 64), (96, 192), (96, 192)]))
    graph, ends, last = gp.Graph("cpu"), [], 3
    for depth in (1, 2, 3):
        tensor = x
        for _ in range(depth):
            following = gp.LogicalTensor(last, "f32", (96, 64))
            graph.add_op(gp.Op(last, "SoftMax", [tensor], [following], axis=-1))
            tensor, last = following, last + 1
        ends.append(tensor)
    graph.add_op(gp.Op(last, "Concat", ends, [y], axis=1))
    graph.add_op(gp.Op(last + 1, "Wildcard", [y], [z], name="double"))
    graph.finalize()
    return ModelForm(graph, {}, {"x": 0}, {"z": 2}, {last + 1: lambda inputs, outputs: [2 * inputs[0]]})


def tower_model(engine: gp.Engine, **options: Any) -> Model:
    """The model, named "towers"."""
    return Model(PORTS[:1], PORTS[1:], towers, engine, name="towers", **options)


def share_always(model: Model, inputs: Any) -> None:
    """Let every run use the whole team from the start."""
    for compiled in model.specialise(inputs).compiled:
        compiled.program.trials = 0
