"""What does a model take on a GPU, beside onnxruntime on the same one?

    python -m bench.cuda.bench_models [--models FOLDER/NAME.onnx ...] [--seconds 1] [--streams 4] [--schedule wavefront]

Without models those of the demonstration run on 64 images. The inputs of a file lie in NAME.npz or NAME.CASE.npz beside
it, as arrays ``in.INPUT``. A run takes arrays of the host and gives such, with onnxruntime too: milliseconds. Memory of
the device is as predicted and as it was taken; the difference is the largest one of the results, by the largest number.
Without onnxruntime, or where it has no CUDA, its columns are empty. Needs a device.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import graphpool as gp
from bench.cuda.common import Work, as_row, least_times
from graphpool import demo

BATCH = 64
PROVIDER = "CUDAExecutionProvider"


def cases(paths: list[Path]) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """Name, file and inputs."""
    if not paths:
        images = np.resize(demo.test_images()[0], (BATCH, 1, 8, 8))
        yield from ((name, demo.model_path(name), {"image": images}) for name in demo.MODELS)
    for path in paths:
        for archive in sorted([*path.parent.glob(f"{path.stem}.npz"), *path.parent.glob(f"{path.stem}.*.npz")]):
            arrays = np.load(archive)
            yield archive.stem, path, {name[3:]: arrays[name] for name in arrays.files if name.startswith("in.")}


def other_session(path: Path) -> Any:
    """A session of onnxruntime on the device; None where there is none."""
    if find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    return (
        onnxruntime.InferenceSession(path, providers=[PROVIDER])
        if PROVIDER in onnxruntime.get_available_providers()
        else None
    )


def difference(found: dict[str, Any], expected: list[Any]) -> float:
    """The largest one of any output."""
    pairs = zip(found.values(), expected, strict=True)
    return max(float(abs(a.astype(float) - b).max(initial=0) / max(abs(b).max(initial=0), 1e-30)) for a, b in pairs)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--models", nargs="*", type=Path, default=[])
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--schedule", default="sequential")
    parser.add_argument("--streams", type=int, default=1)
    arguments = parser.parse_args()
    print("| model | graphpool, ms | onnxruntime, ms | predicted, bytes | taken, bytes | difference |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, path, inputs in cases(arguments.models):
        options = {"schedule": arguments.schedule, "streams": arguments.streams}
        with gp.Engine("gpu") as engine, gp.onnx.load(path, engine=engine, **options) as model:
            predicted, found = model.predict_peak(inputs), model.run(inputs)
            works, differs = [Work(lambda: model.run(inputs), int)], ""  # noqa: B023  (called in this round)
            session = other_session(path)
            if session is not None:
                differs = f"{difference(found, session.run(None, inputs)):.1e}"
                works.append(Work(lambda: session.run(None, inputs), int))  # noqa: B023
            times = [1e3 * seconds for seconds in least_times(works, arguments.seconds, 1)]
            theirs = times[1] if len(times) > 1 else ""
            print(as_row([name, times[0], theirs, int(predicted), engine.budget.peak, differs]), flush=True)


if __name__ == "__main__":
    main()
