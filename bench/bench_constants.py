"""What does the constant tensor cache cost an execution: warm, looked up, and full?

    python -m bench.bench_constants [--seconds 0.2]    the tables
    pytest bench/bench_constants.py --benchmark-only   the same questions as pytest-benchmark cases

The bars: a warm constant adds at most 10 ns to an execution; a hit of `get_or_add` takes at most 300 ns from Python;
with a full cache a product takes at most 1.05 of its time without a cache, with room no more than onnxruntime's.

Times are the least processor time of one thread; what is compared runs in turns in one process. "No constant" is the
same program of one step on weights that the user has put into panels (``layout="any"``, ``Reorder``), without a cache.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
import time
from functools import partial
from typing import Any

import numpy as np
import pytest

import graphpool as gp
from graphpool.cache import ConstantBuffer, ConstantTensorCache, constant_tensor_cache
from graphpool.cache._handle import ConstantHandle
from graphpool.runtime import CompiledPartition
from graphpool.runtime._program import Program
from graphpool.runtime.primitive import Primitive

TINY, LARGE = (1, 16, 16), (1024, 1024)
POLICIES = ("no_evict", "lru", "cost")
MB = 2**20


class Product:
    """execute() of x @ w with prepared tensors."""

    def __init__(self, engine: gp.Engine, shape: tuple[int, int, int], *, panels: bool = False, seed: int = 0) -> None:
        m, k, n = shape
        x, y = gp.LogicalTensor(0, "f32", (m, k)), gp.LogicalTensor(2, "f32", (m, n))
        plain = gp.LogicalTensor(1, "f32", (k, n), property="constant")
        w = plain.replace(layout="any") if panels else plain
        self.compiled = gp.Partition.from_op(gp.Op(0, "MatMul", [x, w], [y])).compile([x, w], [y], engine)
        rng = np.random.default_rng(seed)
        self.stream = gp.Stream(engine)
        self.weight = gp.Tensor(plain, engine, rng.standard_normal((k, n), np.float32))
        weight = self._reorder(engine) if panels else self.weight
        self.inputs = (gp.Tensor(x, engine, rng.standard_normal((m, k), np.float32)), weight)
        self.outputs = (gp.Tensor(y, engine, np.empty((m, n), np.float32)),)

    def _reorder(self, engine: gp.Engine) -> gp.Tensor:
        wanted, plain = self.compiled.query_logical_tensor(1), self.weight.lt.replace(id=3)
        partition = gp.Partition.from_op(gp.Op(1, "Reorder", [plain], [wanted]))
        with partition.compile([plain], [wanted], engine) as reorder:
            [packed] = reorder.execute(self.stream, [gp.Tensor(plain, engine, self.weight.numpy())])
        return packed

    def __call__(self) -> None:
        """Execute once."""
        self.compiled.execute(self.stream, self.inputs, self.outputs)


def in_turns(functions: dict[str, Any], seconds: float, batch: int) -> dict[str, float]:
    """Least processor time of a call of each, in batches that take turns: other work on the machine only adds to it."""
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    end = time.monotonic() + seconds * len(functions)
    while time.monotonic() < end or len(next(iter(samples.values()))) < 5:
        for name, function in functions.items():
            start = time.thread_time_ns()
            for _ in range(batch):
                function()
            samples[name].append((time.thread_time_ns() - start) / batch)
    return {name: min(values) / 1e9 for name, values in samples.items()}


def without_plain_kernel(compiled: Any, call: Any, forms: int = 1) -> Any:
    """The compiled partition, which it closes, with no step but the product in panels: as if the cache never declined.

    With more `forms`, executions acquire the constant that often.
    """
    parts = compiled.primitive.constant_parts * forms
    program = Program([(call, [(2, 0), (5, 0), (4, 0)])], 0, 3 + forms)
    details = compiled.primitive.details
    primitive = Primitive("bench", program, compiled.implementations[:1], [0], [], details, parts)
    made = CompiledPartition(
        compiled.partition, compiled.inputs, compiled.outputs, compiled.engine, primitive=primitive
    )
    compiled.close()
    return made


def warm_calls(engine: gp.Engine) -> dict[str, Any]:
    """A tiny product on panels of the user, on a cached constant, and on constants that alternate or are named."""

    def call(product: Product, **options: Any) -> Any:
        return partial(product.compiled.execute, product.stream, product.inputs, product.outputs, **options)

    mine, bare, alternating = Product(engine, TINY, panels=True), Product(engine, TINY), Product(engine, TINY)
    several = Product(engine, TINY)
    call_on_panels = mine.compiled.program.calls[0]
    several.compiled = without_plain_kernel(several.compiled, call_on_panels, forms=5)
    bare.compiled = without_plain_kernel(bare.compiled, call_on_panels)
    other = gp.Tensor(alternating.inputs[1].lt, engine, np.ones(TINY[1:], np.float32))
    turn = [alternating.inputs, (alternating.inputs[0], other)]

    def alternate() -> None:
        turn.reverse()
        alternating.compiled.execute(alternating.stream, turn[0], alternating.outputs)

    return {
        "no constant": call(mine),
        "warm constant, the same step": call(bare),
        "five warm constants, the same step": call(several),
        "warm constant, with the plain kernel and its scratch beside": call(Product(engine, TINY)),
        "two weights in turns": alternate,
        "key of the execution": call(Product(engine, TINY), options=gp.ExecuteOptions(key="weights")),
    }


def print_warm(seconds: float) -> None:
    with gp.Engine(threads=1) as engine:
        times = in_turns(warm_calls(engine), seconds, 20_000)
    base = times["no constant"]
    print(f"\n| execute, {'x'.join(map(str, TINY))} | ns | over no constant |\n|---|---:|---:|")
    for name, value in times.items():
        print(f"| {name} | {value * 1e9:.0f} | {(value - base) * 1e9:+.0f} |", flush=True)


def hit_calls(policy: str) -> dict[str, Any]:
    """get_or_add of a constant that is there, without and with a handle; what calling a lambda costs is apart."""
    cache = ConstantTensorCache(policy=policy)
    handle = ConstantHandle(("cpu", "bound"))
    cache.get_or_add("cpu", "bound", 64, lambda: ConstantBuffer(64, 64), handle=handle)
    cache.get_or_add("cpu", "free", 64, lambda: ConstantBuffer(64, 64))
    get = cache.get_or_add
    return {
        "call": lambda: None,
        "hit": lambda: get("cpu", "free", 64, None),
        "hit, handle bound": lambda: get("cpu", "bound", 64, None, handle=handle),
    }


def print_hits(seconds: float) -> None:
    print("\n| get_or_add from Python, ns | hit | hit, handle bound |\n|---|---:|---:|")
    for policy in POLICIES:
        times = in_turns(hit_calls(policy), seconds, 5000)
        call = times.pop("call")
        print(f"| {policy} | " + " | ".join(f"{(t - call) * 1e9:.0f}" for t in times.values()) + " |", flush=True)


def together(count: int, work: Any) -> tuple[float, float]:
    """Wall time and processor time of `count` threads that start at once."""
    barrier = threading.Barrier(count + 1)

    def run(number: int) -> None:
        barrier.wait()
        work(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    barrier.wait()
    wall, processor = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.join()
    return time.perf_counter() - wall, time.process_time() - processor


def distinct_hits(count: int, each: int) -> tuple[float, float]:
    """Wall and processor time of `each` hits in every thread, on a key of its own."""
    cache = ConstantTensorCache()
    for number in range(count):
        cache.get_or_add("cpu", number, 64, lambda: ConstantBuffer(64, 64))

    def look_up(number: int) -> None:
        for _ in range(each):
            cache.get_or_add("cpu", number, 64, None)

    return together(count, look_up)


def distinct_executions(count: int, each: int) -> tuple[float, float]:
    """Wall and processor time of `each` executions in every thread, of an engine, partition and weight of its own."""
    with contextlib.ExitStack() as stack:
        engines = [stack.enter_context(gp.Engine(threads=1)) for _ in range(count)]
        jobs = [Product(engine, TINY, seed=number) for number, engine in enumerate(engines)]
        for job in jobs:
            job()

        def execute(number: int) -> None:
            job = jobs[number]
            for _ in range(each):
                job()

        return together(count, execute)


def distinct_forms(count: int, each: int) -> tuple[float, float]:
    """Wall and processor time of making `each` forms of 4 MB in every thread."""
    with gp.Engine(threads=1) as engine:
        jobs = [[Product(engine, (1, *LARGE), seed=8 * i + j) for i in range(each)] for j in range(count)]

        def produce(number: int) -> None:
            for i, job in enumerate(jobs[number]):
                job.compiled.prepare(job.inputs, options=gp.ExecuteOptions(key=(number, i)))

        return together(count, produce)


def print_threads(each: int = 100_000) -> None:
    """What threads that share nothing do at once; with a GIL, hits and executions of next to no work cannot scale."""
    gil = "without a GIL" if not getattr(sys, "_is_gil_enabled", lambda: True)() else "with the GIL"
    print(
        f"\n| {gil}: threads | hits, M/s | ns of processor | executions, M/s | ns of processor | forms of 4 MB, 1/s |"
    )
    print("|---:|---:|---:|---:|---:|---:|")
    for count in (1, 2, 8):
        cells = []
        for work in (distinct_hits, distinct_executions):
            wall, processor = min(work(count, each // count) for _ in range(5))
            cells += [f"{each / wall / 1e6:.2f}", f"{processor / each * 1e9:.0f}"]
        wall, _ = distinct_forms(count, 4)
        print(f"| {count} | {' | '.join(cells)} | {4 * count / wall:.0f} |", flush=True)


def full_calls(engine: gp.Engine, m: int) -> dict[str, Any]:
    """A product with each state of the cache; the state is made before each batch, and no batch measures its making."""
    product, holder = Product(engine, (m, *LARGE)), Product(engine, (m, *LARGE), seed=1)
    cache = constant_tensor_cache("cpu")

    def state(capacity: int | None, policy: str = "no_evict", *, is_taken: bool = False) -> Any:
        def call() -> None:
            cache.set_capacity(capacity, policy=policy)
            if is_taken:
                holder()
            product()

        return call, product

    return {
        "disabled (capacity 0)": state(0),
        "too small (1 MB)": state(MB),
        "full (no_evict)": state(5 * MB, is_taken=True),
        "with room": state(None),
    }


def peer_product(m: int) -> Any:
    """The same product on one thread of onnxruntime, on arrays that are bound once; None where it is not installed."""
    try:
        import onnxruntime
        from onnx import TensorProto, helper, numpy_helper
    except ImportError:
        return None
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((m, LARGE[0]), np.float32), rng.standard_normal(LARGE, np.float32)
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (m, 1024)) for name in ("x", "y")]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "product", ports[:1], ports[1:], [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(x))
    binding.bind_ortvalue_output("y", onnxruntime.OrtValue.ortvalue_from_numpy(np.empty_like(x)))
    return lambda: session.run_with_iobinding(binding)


def measure_full(m: int, seconds: float) -> dict[str, float]:
    """Least processor time of a product, over batches in which the cache is asked as often as it ever is again."""
    with gp.Engine(threads=1) as engine:
        calls = full_calls(engine, m)
        peer = peer_product(m)
        if peer is not None:
            calls["onnxruntime"] = (lambda: None, peer)
        samples: dict[str, list[float]] = {name: [] for name in calls}
        end = time.monotonic() + 4 * seconds * len(calls)
        while time.monotonic() < end:
            for name, (prepare, product) in calls.items():
                prepare()
                for _ in range(130):
                    product()
                start = time.thread_time_ns()
                for _ in range(130):
                    product()
                samples[name].append((time.thread_time_ns() - start) / 130)
        constant_tensor_cache("cpu").set_capacity(None, policy="no_evict")
    return {name: min(values) / 1e9 for name, values in samples.items()}


def print_full(seconds: float) -> None:
    print("\n| product with a weight of 4 MB | m = 1, us | of disabled | m = 16, us | of disabled |")
    print("|---|---:|---:|---:|---:|")
    times = {m: measure_full(m, seconds) for m in (1, 16)}
    if "onnxruntime" not in times[1]:
        print("(no comparison: onnxruntime is not installed)")
    for name in times[1]:
        cells = [f"{t[name] * 1e6:.1f} | {t[name] / t['disabled (capacity 0)']:.2f}" for t in times.values()]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


WARM = [
    "no constant",
    "warm constant, the same step",
    "five warm constants, the same step",
    "key of the execution",
    "two weights in turns",
]


pytestmark = pytest.mark.benchmark(group="constants")


@pytest.mark.parametrize("call", WARM)
def test_warm(benchmark: Any, call: str) -> None:
    with gp.Engine(threads=1) as engine:
        calls = warm_calls(engine)  # the engine closes what they execute
        benchmark(calls[call])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("call", ["hit", "hit, handle bound"])
def test_hit(benchmark: Any, call: str, policy: str) -> None:
    benchmark(hit_calls(policy)[call])


@pytest.mark.parametrize("m", [1, 16])
@pytest.mark.parametrize("state", ["disabled (capacity 0)", "too small (1 MB)", "full (no_evict)", "with room"])
def test_full(benchmark: Any, state: str, m: int) -> None:
    with gp.Engine(threads=1) as engine:
        calls = full_calls(engine, m)
        prepare, product = calls[state]
        prepare()
        benchmark.extra_info.update(threads=1, flops=2 * m * LARGE[0] * LARGE[1], nbytes=4 * (LARGE[0] + 2 * m) * 1024)
        benchmark(product)
    constant_tensor_cache("cpu").set_capacity(None, policy="no_evict")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="time to spend on each figure")
    chosen = parser.parse_args()
    print_warm(chosen.seconds)
    print_hits(chosen.seconds)
    print_threads()
    print_full(chosen.seconds)


if __name__ == "__main__":
    main()
