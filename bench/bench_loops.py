"""Question: what does a loop cost whose trip count only the run knows, and how does it scale with its body.

    python -m bench.bench_loops [--units 64 128 256 512] [--trips 100] [--threads 1] [--json]

The body of the first model is a gated recurrent cell, of the second a step of greedy decoding: a row of a table, a
hidden layer, the largest of `--words` scores. Milliseconds are the least of 30 runs; onnxruntime runs beside, in turns,
where it is installed, and its ratio is the median of those of the pairs. "first" loads the model and runs it once.

Three nearly empty bodies follow: a slice that begins at the trip, a state that grows by a row, a branch of
two. "new" are runs of which each has other shapes than all before, as far as there are any.
"""

import argparse
import json
import statistics
import time

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import graphpool as gp

node = helper.make_node
RUNS = 30


def info(name, shape=(), elem=TensorProto.FLOAT):
    """A tensor of a graph."""
    return helper.make_tensor_value_info(name, elem, shape)


def loop_model(nodes, states, rows, weights, outer=()):
    """A Loop over `states` (name -> last name, shape, type), which gives `rows` (name -> shape, type) of each trip.

    It reads `weights`, and `outer` inputs (name -> shape).
    """
    nodes = [*nodes, node("Identity", ["go"], ["again"])]
    inputs = [info("i", (), TensorProto.INT64), info("go", (), TensorProto.BOOL)]
    inputs += [info(name, shape, elem) for name, (_, shape, elem) in states.items()]
    outputs = [info("again", (), TensorProto.BOOL)]
    outputs += [info(last, shape, elem) for last, shape, elem in states.values()]
    outputs += [info(name, *described) for name, described in rows.items()]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    results = [*(f"{name}_last" for name in states), *(f"{name}_all" for name in rows)]
    loop = node("Loop", ["n", "", *(f"{name}_first" for name in states)], results, body=body)
    ports = [info("n", (), TensorProto.INT64)]
    ports += [info(f"{name}_first", shape, elem) for name, (_, shape, elem) in states.items()]
    ports += [info(name, outer[name]) for name in outer]
    found = [info(f"{name}_last", shape, elem) for name, (_, shape, elem) in states.items()]
    found += [info(f"{name}_all", [None, *shape], elem) for name, (shape, elem) in rows.items()]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph([loop], "loop", ports, found, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def weights_of(**shapes):
    """Random weights of these shapes."""
    rng = np.random.default_rng(0)
    return {name: (0.3 * rng.standard_normal(s) / np.sqrt(s[0])).astype(np.float32) for name, s in shapes.items()}


def recurrent(units):
    """A gated recurrent cell, and its inputs but for the trip count."""
    nodes = [
        node("MatMul", ["h", "wz"], ["z0"]), node("Add", ["z0", "bz"], ["z1"]), node("Sigmoid", ["z1"], ["z"]),
        node("MatMul", ["h", "wr"], ["r0"]), node("Add", ["r0", "br"], ["r1"]), node("Sigmoid", ["r1"], ["r"]),
        node("Mul", ["r", "h"], ["rh"]), node("MatMul", ["rh", "wh"], ["c0"]), node("Tanh", ["c0"], ["c"]),
        node("Sub", ["one", "z"], ["rest"]), node("Mul", ["rest", "c"], ["p"]), node("Mul", ["z", "h"], ["q"]),
        node("Add", ["p", "q"], ["next"]), node("Identity", ["next"], ["seen"]),
    ]  # fmt: skip
    square, row = (units, units), (1, units)
    weights = weights_of(wz=square, wr=square, wh=square, bz=row, br=row) | {"one": np.float32(1)}
    real = [1, units], TensorProto.FLOAT
    return loop_model(nodes, {"h": ("next", *real)}, {"seen": real}, weights), {"h_first": np.ones(row, np.float32)}


def greedy(units, words):
    """A step of greedy decoding, and its inputs but for the trip count."""
    nodes = [
        node("Gather", ["table", "word"], ["e"]), node("Concat", ["e", "h"], ["x"], axis=1),
        node("MatMul", ["x", "w"], ["g"]), node("Tanh", ["g"], ["next"]), node("MatMul", ["next", "v"], ["scores"]),
        node("ArgMax", ["scores"], ["best"], axis=1, keepdims=0), node("Identity", ["best"], ["said"]),
    ]  # fmt: skip
    weights = weights_of(table=(words, units), w=(2 * units, units), v=(units, words))
    index = [1], TensorProto.INT64
    states = {"word": ("best", *index), "h": ("next", [1, units], TensorProto.FLOAT)}
    inputs = {"word_first": np.array([1]), "h_first": np.zeros((1, units), np.float32)}
    return loop_model(nodes, states, {"said": index}, weights), inputs


def sliced():
    """A sum of all rows from the number of the trip on, and the inputs but for the trip count."""
    nodes = [
        node("Unsqueeze", ["i", "zero"], ["from"]), node("Slice", ["rows", "from", "end", "zero"], ["rest"]),
        node("ReduceSum", ["rest", "zero"], ["sum"], keepdims=0), node("Add", ["h", "sum"], ["next"]),
    ]  # fmt: skip
    numbers = {"zero": np.array([0]), "end": np.array([2**31])}
    model = loop_model(nodes, {"h": ("next", [8], TensorProto.FLOAT)}, {}, numbers, {"rows": ["count", 8]})
    return model, lambda k: {"h_first": np.zeros(8, np.float32), "rows": np.ones((128 + 11 * k, 8), np.float32)}


def growing():
    """A state to which each trip adds a row, and the inputs but for the trip count."""
    nodes = [node("Concat", ["h", "row"], ["more"], axis=0), node("Mul", ["more", "half"], ["next"])]
    numbers = {"row": np.ones((1, 8), np.float32), "half": np.float32(0.5)}
    model = loop_model(nodes, {"h": ("next", [None, 8], TensorProto.FLOAT)}, {}, numbers)
    return model, lambda k: {"h_first": np.zeros((1 + 137 * k, 8), np.float32)}


def branching():
    """A state that even trips add to and odd ones scale, and the inputs but for the trip count."""
    sides = [
        helper.make_graph([node(kind, ["h", "half"], [kind])], kind, [], [info(kind, [8])]) for kind in ("Add", "Mul")
    ]
    nodes = [
        node("Mod", ["i", "two"], ["odd"]), node("Equal", ["odd", "zero"], ["even"]),
        node("If", ["even"], ["next"], then_branch=sides[0], else_branch=sides[1]),
    ]  # fmt: skip
    numbers = {"two": np.array(2), "zero": np.array(0), "half": np.full(8, 0.5, np.float32)}
    model = loop_model(nodes, {"h": ("next", [8], TensorProto.FLOAT)}, {}, numbers)
    return model, lambda k: {"h_first": np.zeros(8, np.float32)}


def peer_of(model, threads):
    """onnxruntime's run of a model, or None."""
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)


def timed(run, inputs):
    """Milliseconds of a call."""
    start = time.perf_counter()
    run(inputs)
    return (time.perf_counter() - start) * 1e3


def measure(model, inputs, threads):
    """The figures of one model."""
    theirs, start = peer_of(model, threads), time.perf_counter()
    with gp.onnx.load(model, threads=threads, fallback=False) as loaded:
        loaded.run(inputs)
        found = {"first_ms": (time.perf_counter() - start) * 1e3}
        rounds = [(timed(loaded.run, inputs), theirs and timed(theirs, inputs)) for _ in range(RUNS)]
    found["ms"] = min(ours for ours, _ in rounds)
    if theirs is not None:
        found["peer_ms"] = min(other for _, other in rounds)
        found["ratio"] = statistics.median(ours / other for ours, other in rounds)
    return found


def measure_small(make, trips, threads):
    """Microseconds of a trip of a nearly empty body, the least of all runs, and of such on shapes of their own."""
    model, inputs_of = make()
    theirs = peer_of(model, threads)
    inputs = {**inputs_of(0), "n": np.array(trips)}
    with gp.onnx.load(model, threads=threads, fallback=False) as loaded:
        loaded.run(inputs)
        rounds = [(timed(loaded.run, inputs), theirs and timed(theirs, inputs)) for _ in range(RUNS)]
        others = [{**inputs_of(k), "n": np.array(trips)} for k in range(1, 9)]
        found = {"us": min(ours for ours, _ in rounds), "new_us": min(timed(loaded.run, other) for other in others)}
    if theirs is not None:
        found["peer_us"] = min(other for _, other in rounds)
        found["peer_new_us"] = min(timed(theirs, other) for other in others)
    return {key: 1e3 * ms / trips for key, ms in found.items()}


def main(argv=None):
    """Measure all, and print them."""
    parser = argparse.ArgumentParser(prog="python -m bench.bench_loops")
    parser.add_argument("--units", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--words", type=int, default=2000)
    parser.add_argument("--trips", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    rows = []
    for units in arguments.units:
        for name, (model, inputs) in (("recurrent", recurrent(units)), ("greedy", greedy(units, arguments.words))):
            figures = measure(model, {**inputs, "n": np.array(arguments.trips)}, arguments.threads)
            rows.append({"body": name, "units": units, **figures})
            if not arguments.json:
                told = "  ".join(f"{key} {value:.3f}" for key, value in figures.items())
                print(f"{name:<10}{units:>5}  {told}")
    for make in (sliced, growing, branching):
        figures = measure_small(make, arguments.trips, arguments.threads)
        rows.append({"body": make.__name__, **figures})
        if not arguments.json:
            print(f"{make.__name__:<15}  " + "  ".join(f"{key} {value:.2f}" for key, value in figures.items()))
    if arguments.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
