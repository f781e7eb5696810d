"""Random bodies of loops, whose outputs may be anything that there is, against the same in NumPy."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphpool as gp

BINARY = {"Add": np.add, "Sub": np.subtract, "Max": np.maximum, "Min": np.minimum}
UNARY = {"Tanh": np.tanh, "Neg": np.negative, "Sin": np.sin, "Identity": np.copy}
TRIPS = (0, 1, 7, 300)


class Body:
    """Nodes over states, a constant and outer values, all of one shape; which of them are outputs is drawn."""

    def __init__(self, rng, nstates):
        self.states = [f"s{k}" for k in range(nstates)]
        self.names = [*self.states, "outer", "constant"]
        self.nodes = []
        for number in range(rng.integers(0, 6)):
            kind = rng.choice([*BINARY, *UNARY])
            given = [str(rng.choice(self.names)) for _ in range(1 + (kind in BINARY))]
            self.nodes.append((str(kind), given, f"t{number}"))
            self.names.append(f"t{number}")
        self.next = [str(rng.choice(self.names)) for _ in self.states]
        self.rows = [str(rng.choice(self.names)) for _ in range(rng.integers(0, 3))]
        self.ends = bool(rng.integers(2))

    def trip(self, values):
        """All values of a trip, by name."""
        for kind, given, name in self.nodes:
            values[name] = (BINARY | UNARY)[kind](*(values[other] for other in given))
        return values

    def loop(self, feeds):
        """What so many trips give: states and rows."""
        values = {name: feeds[f"{name}_0"] for name in self.states}
        found = [[] for _ in self.rows]
        for _ in range(int(feeds["n"])):
            values = self.trip({**values, "outer": feeds["outer"], "constant": np.float32(0.5) + 0 * feeds["outer"]})
            for row, name in zip(found, self.rows, strict=True):
                row.append(values[name])
            values = {name: values[other] for name, other in zip(self.states, self.next, strict=True)}
            if self.ends and not values["s0"].max() < 1.25:
                break
        shape = feeds["outer"].shape
        return [values[name] for name in self.states], [np.array(row).reshape(-1, *shape) for row in found]

    def graph(self, dims):
        """The body for ONNX."""
        nodes = [helper.make_node(kind, given, [name]) for kind, given, name in self.nodes]
        nodes += [helper.make_node("Identity", [name], [f"{name}_next{k}"]) for k, name in enumerate(self.next)]
        nodes += [helper.make_node("Identity", [name], [f"{name}_row{k}"]) for k, name in enumerate(self.rows)]
        check = [helper.make_node("ReduceMax", [f"{self.next[0]}_next0"], ["top"], keepdims=0),
                 helper.make_node("Less", ["top", "most"], ["again"])]  # fmt: skip
        nodes += check if self.ends else [helper.make_node("Identity", ["go"], ["again"])]
        inputs = [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL)]
        outputs = [value("again", [], TensorProto.BOOL)]
        outputs += [value(f"{name}_next{k}", dims) for k, name in enumerate(self.next)]
        outputs += [value(f"{name}_row{k}", dims) for k, name in enumerate(self.rows)]
        return helper.make_graph(nodes, "body", inputs + [value(name, dims) for name in self.states], outputs)


def value(name, dims, elem=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, elem, dims)


def model_of(body, dims):
    states, rows = [f"{name}_0" for name in body.states], [f"r{k}" for k in range(len(body.rows))]
    constants = [helper.make_node("Mul", ["outer", "zero"], ["zeros"]), helper.make_node("Add", ["zeros", "half"],
                                                                                         ["constant"])]  # fmt: skip
    lasts = [f"{name}_last" for name in body.states]
    loop = helper.make_node("Loop", ["n", "", *states], [*lasts, *rows], body=body.graph(dims))
    inputs = [value("n", [], TensorProto.INT64), *(value(name, dims) for name in ("outer", *states))]
    outputs = [value(name, dims) for name in lasts] + [value(name, [None, *dims]) for name in rows]
    numbers = {"zero": 0, "half": 0.5, "most": 1.25}
    tensors = [numpy_helper.from_array(np.float32(number), name) for name, number in numbers.items()]
    graph = helper.make_graph([*constants, loop], "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("seed", range(40))
def test_a_random_loop(seed):
    rng = np.random.default_rng(seed)
    body = Body(rng, int(rng.integers(1, 4)))
    dims = [["a", 3], [2, 2], ["a"]][seed % 3]
    with gp.onnx.load(model_of(body, dims), fallback=False, threads=1 + seed % 2) as model:
        for trips in TRIPS:
            shape = [int(rng.integers(1, 6)) if isinstance(dim, str) else dim for dim in dims]
            names = ["outer", *(f"{name}_0" for name in body.states)]
            feeds = {name: rng.standard_normal(shape).astype(np.float32) for name in names}
            feeds["n"] = np.array(trips)
            found = list(model.run(feeds).values())
            states, rows = body.loop(feeds)
            for own, wanted in zip(found, [*states, *rows], strict=True):
                if trips:  # rows that nobody gives have no sizes but those of the file
                    assert own.shape == wanted.shape
                np.testing.assert_allclose(own.reshape(wanted.shape), wanted, rtol=2e-3, atol=1e-4)
