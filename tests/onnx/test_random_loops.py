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


RESIZING = {
    "grow": lambda x, row, i: np.concatenate([x, row]),
    "prepend": lambda x, row, i: np.concatenate([row, x]),
    "shrink": lambda x, row, i: x[1:],
    "halve": lambda x, row, i: x[::2],
    "from_trip": lambda x, row, i: x[i:],
    "tanh": lambda x, row, i: np.tanh(x),
    "centre": lambda x, row, i: x - row,
    "turn": lambda x, row, i: x[:, ::-1],
    "wrap": lambda x, row, i: np.concatenate([x[-1:], x[:-1]]),
}
"""What a node or two make of an array of rows, of one row and of the number of the trip."""


class ResizingBody:
    """Chains of these over states of which each has a length of its own; states change places."""

    def __init__(self, rng, nstates):
        self.states = [f"s{k}" for k in range(nstates)]
        kinds = list(RESIZING)
        self.chains = [
            (str(rng.choice(self.states)), [str(rng.choice(kinds)) for _ in range(rng.integers(0, 4))])
            for _ in self.states
        ]
        self.has_rows = bool(rng.integers(2))

    def loop(self, feeds):
        """Last states, and of each trip the sums of the first one's columns."""
        values, rows = {name: feeds[f"{name}_0"] for name in self.states}, []
        for i in range(int(feeds["n"])):
            following = {}
            for name, (source, kinds) in zip(self.states, self.chains, strict=True):
                following[name] = values[source]
                for kind in kinds:
                    following[name] = RESIZING[kind](following[name], feeds["row"], i)
            values = following
            rows.append(values["s0"].sum(0))
        return [values[name] for name in self.states], [np.array(rows).reshape(-1, 3)] if self.has_rows else []

    def graph(self):
        """The body for ONNX."""
        nodes = [helper.make_node("Unsqueeze", ["i", "zero"], ["i1"])]
        ends = {"shrink": ["one", "end", "zero"], "halve": ["zero", "end", "zero", "two"],
                "from_trip": ["i1", "end", "zero"], "turn": ["last", "start", "one", "last"]}  # fmt: skip
        for k, (source, kinds) in enumerate(self.chains):
            name = source
            for n, kind in enumerate(kinds):
                before, name = name, f"t{k}_{n}"
                if kind in ends:
                    nodes.append(helper.make_node("Slice", [before, *ends[kind]], [name]))
                elif kind == "tanh":
                    nodes.append(helper.make_node("Tanh", [before], [name]))
                elif kind == "centre":
                    nodes.append(helper.make_node("Sub", [before, "row"], [name]))
                elif kind == "wrap":
                    tops = ["last", "end"], ["zero", "last"]
                    nodes += [helper.make_node("Slice", [before, *top, "zero"], [f"{name}_{j}"])
                              for j, top in enumerate(tops)]  # fmt: skip
                    nodes.append(helper.make_node("Concat", [f"{name}_0", f"{name}_1"], [name], axis=0))
                else:
                    parts = [before, "row"] if kind == "grow" else ["row", before]
                    nodes.append(helper.make_node("Concat", parts, [name], axis=0))
            nodes.append(helper.make_node("Identity", [name], [f"s{k}_next"]))
        if self.has_rows:
            nodes.append(helper.make_node("ReduceSum", ["s0_next", "zero"], ["sums"], keepdims=0))
        nodes.append(helper.make_node("Identity", ["go"], ["again"]))
        inputs = [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL)]
        outputs = [value("again", [], TensorProto.BOOL), *(value(f"{name}_next", [None, 3]) for name in self.states)]
        outputs += [value("sums", [3])] if self.has_rows else []
        return helper.make_graph(nodes, "body", inputs + [value(name, [None, 3]) for name in self.states], outputs)


def resizing_model(body):
    firsts, lasts = [f"{name}_0" for name in body.states], [f"{name}_last" for name in body.states]
    rows = ["r0"] if body.has_rows else []
    loop = helper.make_node("Loop", ["n", "", *firsts], [*lasts, *rows], body=body.graph())
    inputs = [value("n", [], TensorProto.INT64), value("row", [1, 3]), *(value(name, [None, 3]) for name in firsts)]
    outputs = [value(name, [None, 3]) for name in lasts] + [value(name, [None, 3]) for name in rows]
    numbers = {"zero": 0, "one": 1, "two": 2, "last": -1, "start": -(2**40), "end": 2**40}
    tensors = [numpy_helper.from_array(np.array([number]), name) for name, number in numbers.items()]
    graph = helper.make_graph([loop], "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("seed", range(60))
def test_a_random_loop_whose_shapes_change(seed):
    rng = np.random.default_rng(1000 + seed)
    body = ResizingBody(rng, int(rng.integers(1, 4)))
    with gp.onnx.load(resizing_model(body), fallback=False, threads=1 + seed % 2) as model:
        for trips in (0, 1, 7, 40, 40):
            feeds = {f"{name}_0": rng.standard_normal((int(rng.integers(0, 9)), 3)) for name in body.states}
            feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
            feeds |= {"row": rng.standard_normal((1, 3)).astype(np.float32), "n": np.array(trips)}
            found = list(model.run(feeds).values())
            states, rows = body.loop(feeds)
            for own, wanted in zip(found, [*states, *rows], strict=True):
                assert own.shape == wanted.shape
                np.testing.assert_allclose(own, wanted, rtol=2e-3, atol=1e-4)
                assert own.base is None or len(own.base) == own.size * own.itemsize  # holds no more than it shows


class BranchingBody:
    """States of which each becomes what a tree of branches gives: leaves compute, pass something on, or loop."""

    def __init__(self, rng, nstates):
        self.rng, self.states = rng, [f"s{k}" for k in range(nstates)]
        self.trees = [self.tree(int(rng.integers(1, 3))) for _ in self.states]
        self.count = 0

    def tree(self, depth):
        names = [*self.states, "outer"]
        if depth and self.rng.random() < 0.8:
            sides = self.tree(depth - 1), self.tree(depth - 1)
            return ("if", str(self.rng.choice(["even", "large"])), str(self.rng.choice(names)), sides)
        kind = str(self.rng.choice(["pass", "constant", "add", "tanh", "loop"]))
        return (kind, str(self.rng.choice(names)), str(self.rng.choice(names)))

    def value(self, tree, values):
        """What a tree gives."""
        kind, one, other = tree[:3]
        if kind == "if":
            taken = values["i"] % 2 == 0 if one == "even" else values[other].max() > 0.3
            return self.value(tree[3][0 if taken else 1], values)
        if kind == "loop":
            found = values[one]
            for _ in range(3):
                found = np.tanh(found + values[other])
            return found
        found = {"pass": values[one], "constant": np.full_like(values["outer"], 0.25)}
        return {**found, "add": values[one] + values[other], "tanh": np.tanh(values[one])}[kind]

    def nodes(self, tree, result):
        """The same for ONNX."""
        kind, one, other = tree[:3]
        self.count += 1
        own = f"n{self.count}"
        if kind == "if":
            sides = [helper.make_graph(self.nodes(side, f"{own}_{k}"), f"g{own}_{k}", [], [value(f"{own}_{k}", [2, 3])])
                     for k, side in enumerate(tree[3])]  # fmt: skip
            found = [helper.make_node("Mod", ["i", "two"], [f"{own}_m"]),
                     helper.make_node("Equal", [f"{own}_m", "zero"], [f"{own}_c"])]  # fmt: skip
            if one == "large":
                found = [helper.make_node("ReduceMax", [other], [f"{own}_m"], keepdims=0),
                         helper.make_node("Greater", [f"{own}_m", "most"], [f"{own}_c"])]  # fmt: skip
            return [*found, helper.make_node("If", [f"{own}_c"], [result], then_branch=sides[0], else_branch=sides[1])]
        if kind == "loop":
            k, on, v, again, w, after = (f"{own}_{name}" for name in ("k", "on", "v", "again", "w", "next"))
            inputs = [value(k, [], TensorProto.INT64), value(on, [], TensorProto.BOOL), value(v, [2, 3])]
            inner = [helper.make_node("Identity", [on], [again]), helper.make_node("Add", [v, other], [w]),
                     helper.make_node("Tanh", [w], [after])]  # fmt: skip
            outputs = [value(again, [], TensorProto.BOOL), value(after, [2, 3])]
            body = helper.make_graph(inner, f"b{own}", inputs, outputs)
            return [helper.make_node("Loop", ["three", "", one], [result], body=body)]
        kinds = {"pass": "Identity", "constant": "Identity", "add": "Add", "tanh": "Tanh"}
        given = {"constant": ["quarter"], "add": [one, other]}.get(kind, [one])
        return [helper.make_node(kinds[kind], given, [result])]

    def model(self):
        nodes = [node for k, tree in enumerate(self.trees) for node in self.nodes(tree, f"s{k}_next")]
        nodes += [helper.make_node("Identity", ["go"], ["again"]), helper.make_node("Identity", ["s0_next"], ["row"])]
        inputs = [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL)]
        outputs = [value("again", [], TensorProto.BOOL), *(value(f"{name}_next", [2, 3]) for name in self.states)]
        inputs += [value(name, [2, 3]) for name in self.states]
        body = helper.make_graph(nodes, "body", inputs, [*outputs, value("row", [2, 3])])
        firsts, lasts = [f"{name}_0" for name in self.states], [f"{name}_last" for name in self.states]
        loop = helper.make_node("Loop", ["n", "", *firsts], [*lasts, "rows"], body=body)
        ports = [value("n", [], TensorProto.INT64), value("three", [], TensorProto.INT64),
                 *(value(name, [2, 3]) for name in ("outer", *firsts))]  # fmt: skip
        results = [value(name, [2, 3]) for name in lasts] + [value("rows", [None, 2, 3])]
        numbers = {"two": np.array(2), "zero": np.array(0), "most": np.float32(0.3)}
        numbers["quarter"] = np.full((2, 3), 0.25, np.float32)
        tensors = [numpy_helper.from_array(np.asarray(number), name) for name, number in numbers.items()]
        graph = helper.make_graph([loop], "g", ports, results, tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("seed", range(40))
def test_a_random_loop_with_branches(seed):
    rng = np.random.default_rng(2000 + seed)
    body = BranchingBody(rng, int(rng.integers(1, 4)))
    with gp.onnx.load(body.model(), fallback=False, threads=1 + seed % 2) as model:
        for trips in (1, 2, 9, 40):
            names = ["outer", *(f"{name}_0" for name in body.states)]
            feeds = {name: rng.standard_normal((2, 3)).astype(np.float32) for name in names}
            found = list(model.run({**feeds, "n": np.array(trips), "three": np.array(3)}).values())
            values, rows = {name: feeds[f"{name}_0"] for name in body.states}, []
            for i in range(trips):
                now = {**values, "outer": feeds["outer"], "i": i}
                values = {f"s{k}": body.value(tree, now) for k, tree in enumerate(body.trees)}
                rows.append(values["s0"])
            for own, wanted in zip(found, [*values.values(), np.array(rows)], strict=True):
                np.testing.assert_allclose(own, wanted, rtol=2e-3, atol=1e-4)
