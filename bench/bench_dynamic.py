"""What does dynamic quantisation of a model gain over float32, beside onnxruntime on the same bytes?

    python -m bench.bench_dynamic [--seconds 1] [--models FOLDER/bert_base.onnx ...]    a table of layers, or of models
    pytest bench/bench_dynamic.py --benchmark-only                                      layers on graphpool alone

Layers are ``x @ w + b``; models are files with inputs in NAME.npz or NAME.CASE.npz beside them, as arrays ``in.INPUT``.
onnxruntime's `quantize_dynamic` quantises both (weights s8, one scale a tensor). Four ways of running take turns in one
process, one thread; times are processor time, the least of many. Errors are root mean squares against onnxruntime's
results in float32, relative to those.

Bars: no slower than onnxruntime, as exact, and three times as fast as float32 from 128 rows on.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.ceilings import best_times

LAYERS = [(1, 768, 3072), (16, 768, 3072), (128, 768, 3072), (128, 3072, 768)]
"""(m, k, n)."""


def layer_model(shape: tuple[int, int, int]) -> Any:
    """A product with a bias."""
    from onnx import TensorProto, helper, numpy_helper

    (m, k, n), rng = shape, np.random.default_rng(0)
    weights = {"w": rng.standard_normal((k, n)) / np.sqrt(k), "b": rng.standard_normal(n)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["y"])]
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in (("x", (m, k)), ("y", (m, n)))
    ]
    tensors = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "layer", ports[:1], ports[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def quantised(path: Path, folder: Path) -> Path:
    """The model in bytes."""
    from onnxruntime.quantization import quantize_dynamic

    result = folder / f"{path.stem}_dynamic.onnx"
    quantize_dynamic(path, result)
    return result


def runners(path: Path, inputs: dict[str, Any]) -> tuple[Any, Any]:
    """What runs a model on graphpool and on onnxruntime; both give the first output."""
    import onnxruntime

    import graphpool.onnx as gpx

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name, model = session.get_outputs()[0].name, gpx.load(path, threads=1)
    return lambda: model.run(inputs)[name], lambda: session.run(None, inputs)[0]


def error_of(result: Any, wanted: Any) -> float:
    """Root mean square of the difference, relative to that of what was wanted."""
    return float(np.sqrt(np.mean((result - wanted) ** 2.0) / np.mean(wanted**2.0)))


def print_row(name: str, path: Path, inputs: dict[str, Any], folder: Path, seconds: float) -> None:
    """One line of the table."""
    works = [*runners(quantised(path, folder), inputs), *runners(path, inputs)]
    errors = [error_of(work(), works[3]()) for work in works[:2]]
    own, peer, f32, _ = best_times(works, seconds)
    print(
        f"| {name} | {own * 1e6:.0f} | {peer * 1e6:.0f} | {own / peer:.2f} | {f32 / own:.2f} | "
        f"{errors[0]:.4f} | {errors[1]:.4f} |",
        flush=True,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--models", type=Path, nargs="*", default=[])
    options = parser.parse_args()
    print("| m x k x n or model | us | onnxruntime | / onnxruntime | times as fast as f32 | error | onnxruntime |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        for shape in () if options.models else LAYERS:
            path = folder / "layer.onnx"
            path.write_bytes(layer_model(shape).SerializeToString())
            x = np.random.default_rng(1).standard_normal(shape[:2]).astype(np.float32)
            print_row(" x ".join(map(str, shape)), path, {"x": x}, folder, options.seconds)
        for path in options.models:
            npz = next(
                path.with_suffix(end) for end in (".npz", ".p128.npz", ".t64.npz") if path.with_suffix(end).exists()
            )
            given = {key[3:]: value for key, value in np.load(npz).items() if key.startswith("in.")}
            print_row(path.stem, path, given, folder, options.seconds)


pytestmark = pytest.mark.benchmark(group="dynamic quantisation")


@pytest.mark.parametrize("shape", LAYERS, ids=str)
def test_layer(benchmark: Any, shape: tuple[int, int, int], tmp_path: Path) -> None:
    """One run of a quantised layer."""
    pytest.importorskip("onnxruntime", reason="onnxruntime quantises the model; it is not installed")
    import graphpool.onnx as gpx

    path = tmp_path / "layer.onnx"
    path.write_bytes(layer_model(shape).SerializeToString())
    inputs = {"x": np.random.default_rng(1).standard_normal(shape[:2]).astype(np.float32)}
    with gpx.load(quantised(path, tmp_path), threads=1) as model:
        (m, k, n), x = shape, inputs["x"]
        benchmark.extra_info.update(flops=2 * m * k * n, nbytes=x.nbytes + k * n + 4 * m * n, dtype="s8", threads=1)
        benchmark(model.run, inputs)


if __name__ == "__main__":
    main()
