"""Draw the pictures of the concept pages from what graphpool itself says: partitions, plans, schedules, replays.

    python docs/make_pictures.py [FOLDER]

Needs the extras ``onnx`` and ``profile``. Without FOLDER the files beside the pages are written anew.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

import graphpool as gp
from graphpool.cache.policies import policy_names
from graphpool.cache.traces import compare_policies, distinct_nbytes
from graphpool.demo import model_path, test_images
from graphpool.schedule import DependencyGraph, list_schedule, sequential, simulate

if TYPE_CHECKING:
    from collections.abc import Callable

mpl.rcParams.update({"font.size": 9, "savefig.facecolor": "white"})
COLOURS = [mpl.colormaps["tab20"](k) for k in (1, 3, 5, 7, 9, 11, 13, 15, 17, 19)]
KIB = 1024


def _axes(width: float, height: float) -> tuple[Figure, Any]:
    figure = Figure((width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def draw_partitions() -> Figure:
    """Ops of the demonstration's CNN in order, those of a partition in one frame."""
    images, _ = test_images()
    with gp.onnx.load(model_path("digits_cnn"), threads=1) as model:
        partitions = [[op.kind for op in part.ops] for part in model.specialise({"image": images[:8].shape}).partitions]
    figure, axes = _axes(8, 3.1)
    axes.axis("off")
    columns, row_height, width = 9, 1.0, 1.0
    position = 0
    for number, kinds in enumerate(partitions):
        for order, kind in enumerate(kinds):
            row, column = divmod(position, columns)
            box = FancyBboxPatch(
                (column * width + 0.04, -row * row_height), width - 0.08, 0.5, "round,pad=0.01,rounding_size=0.06",
                facecolor=COLOURS[number % len(COLOURS)], edgecolor="#444",
            )  # fmt: skip
            axes.add_patch(box)
            text = kind.replace("Inference", "\nInference").replace("Static", "Static\n")
            centre = column * width + width / 2
            axes.text(centre, -row * row_height + 0.25, text, ha="center", va="center", fontsize=7, color="#111")
            if order == 0:
                axes.text(
                    column * width + 0.06, -row * row_height + 0.6, f"partition {number}", fontsize=7, color="#333"
                )
            position += 1
    axes.set_xlim(0, columns * width)
    axes.set_ylim(-((position - 1) // columns) * row_height - 0.1, 0.9)
    axes.set_title(f"digits_cnn: {position} ops in {len(partitions)} partitions", fontsize=9)
    return figure


def draw_arena() -> Figure:
    """Temporaries of the demonstration's transformer at their places in the arena, over its steps."""
    images, _ = test_images()
    with gp.onnx.load(model_path("digits_transformer"), threads=1) as model:
        picture = gp.profile.footprint(model, {"image": images[:8]})
    kinds = list(dict.fromkeys(tenant.kind for tenant in picture.temporaries))
    figure, axes = _axes(8, 3.6)
    for tenant in picture.temporaries:
        box = Rectangle(
            (tenant.first_step, tenant.offset / KIB), tenant.last_step - tenant.first_step + 1, tenant.nbytes / KIB,
            facecolor=COLOURS[kinds.index(tenant.kind) % len(COLOURS)], edgecolor="#444", linewidth=0.5,
        )  # fmt: skip
        axes.add_patch(box)
    for number, kind in enumerate(kinds):
        axes.plot([], [], "s", color=COLOURS[number % len(COLOURS)], markeredgecolor="#444", label=kind)
    axes.axhline(picture.needed_nbytes / KIB, color="#b3261e", linestyle="--", linewidth=1, label="most needed at once")
    axes.set(xlim=(0, len(picture.steps)), ylim=(0, picture.arena_nbytes / KIB * 1.03))
    axes.set(xlabel="step of the run", ylabel="offset in the arena, KiB")
    axes.set_title("digits_transformer, 8 images: each rectangle is a temporary", fontsize=9)
    figure.legend(loc="outside right upper", fontsize=7, frameon=False)
    return figure


def draw_limits() -> Figure:
    """What a run takes under limits, from refusal to all that it would like."""
    images, _ = test_images()
    inputs = {"image": images[:8]}
    with gp.onnx.load(model_path("digits_cnn"), threads=1) as model:
        wanted = int(model.predict_peak(inputs))
    limits = np.linspace(wanted * 0.3, wanted * 1.3, 41).astype(int)
    taken = [_peak_under(int(limit), inputs) for limit in limits]
    figure, axes = _axes(6.4, 2.8)
    runs = [(limit, peak) for limit, peak in zip(limits, taken, strict=True) if peak]
    least = runs[0][0] / KIB
    axes.axvspan(limits[0] / KIB, least, color="#f3d6d3", label="refused before it runs")
    axes.plot(limits / KIB, limits / KIB, color="#888", linewidth=1, label="the limit")
    axes.step(
        [limit / KIB for limit, _ in runs], [peak / KIB for _, peak in runs], where="post", color="#1a5fb4",
        label="most that the run took",
    )  # fmt: skip
    axes.axhline(wanted / KIB, color="#b3261e", linestyle="--", linewidth=1, label="predicted without a limit")
    axes.set(xlabel="memory_limit, KiB", ylabel="KiB", xlim=(limits[0] / KIB, limits[-1] / KIB), ylim=(0, None))
    axes.set_title("digits_cnn, 8 images: less memory for packed weights under smaller limits", fontsize=9)
    axes.legend(fontsize=7, frameon=False, loc="lower right")
    return figure


def _peak_under(limit: int, inputs: dict[str, Any]) -> int:
    """The most that a run takes under a limit; 0 where it is refused."""
    try:
        with gp.onnx.load(model_path("digits_cnn"), threads=1, memory_limit=limit) as model:
            model.run(inputs)
            return int(model.engine.budget.peak)
    except gp.OutOfMemoryError:
        return 0


def draw_policies() -> Figure:
    """Packing time that each policy saves on the weights of both demonstration models, over capacities."""
    images, _ = test_images()
    cache = gp.cache.constant_tensor_cache("cpu")
    with cache.record() as trace:
        for visit in range(60):
            name = "digits_transformer" if visit % 4 else "digits_cnn"
            with gp.onnx.load(model_path(name), weights="cached", threads=1) as model:
                model.run({"image": images[:8]})
    shares = [5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    trace = [item._replace(cost=float(item.nbytes)) for item in trace]  # packing takes time by size
    whole = distinct_nbytes(trace)
    found = compare_policies(trace, [whole * share // 100 for share in shares], policy_names())
    figure, axes = _axes(6.4, 2.8)
    for name in policy_names():
        axes.plot(shares, [100 * each.results[name].saved_share for each in found], "o-", markersize=3, label=name)
    best = [100 * each.best.achievable_share for each in found]
    axes.plot(shares, best, color="#888", linestyle="--", label="with foresight")
    axes.set(xlabel="capacity, share of all packed weights, %", ylabel="packing saved, %", ylim=(0, 102))
    axes.set_title("two models, one used three times as often", fontsize=9)
    axes.legend(fontsize=7, frameon=False)
    return figure


def draw_schedules() -> Figure:
    """The same graph on one stream and on two."""
    names = ["stem", "a1", "a2", "b1", "b2", "c1", "join"]
    edges = [(0, 1), (1, 2), (0, 3), (3, 4), (0, 5), (2, 6), (4, 6), (5, 6)]
    graph = DependencyGraph(edges, [2, 3, 2, 1, 4, 3, 1], names=names)
    figure = Figure((7, 2.6), layout="constrained")
    rows = figure.subplots(2, 1, sharex=True)
    for axes, schedule in zip(rows, (sequential(graph), list_schedule(graph, streams=2)), strict=True):
        found = simulate(schedule)
        for stream, runs in found.streams.items():
            for nodes, start, end in runs:
                colour = COLOURS[nodes[0] % len(COLOURS)]
                axes.barh(stream, end - start, left=start, color=colour, edgecolor="#444", height=0.8)
                axes.text((start + end) / 2, stream, names[nodes[0]], ha="center", va="center", fontsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set(yticks=list(found.streams), ylim=(len(found.streams) - 0.4, -0.6), ylabel="stream")
        axes.set_title(f"{schedule.policy}: {found.makespan:g}", fontsize=9, loc="left")
    rows[-1].set_xlabel("time, in the unit of the costs")
    return figure


def draw_errors_of_modes() -> Figure:
    """Distribution of the error of one product in each float mode, in units of what its terms add up to."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((64, 512)).astype(np.float32), rng.standard_normal((512, 256)).astype(np.float32)
    exact, magnitude = a.astype(np.float64) @ b, abs(a).astype(np.float64) @ abs(b)
    figure, axes = _axes(6.4, 2.6)
    for row, mode in enumerate(("strict", "bf16")):
        error = abs(_product(a, b, mode) - exact) / magnitude
        axes.plot(
            np.maximum(error, 1e-12).reshape(-1), rng.uniform(row - 0.3, row + 0.3, error.size), ".", markersize=1
        )
        axes.plot([error.max()] * 2, [row - 0.35, row + 0.35], color="#b3261e")
        axes.text(error.max() * 1.3, row, f"largest {error.max():.1e}", va="center", fontsize=7)
    axes.set(xscale="log", xlim=(1e-12, 1), yticks=[0, 1], yticklabels=["strict", "bf16"], ylim=(1.5, -0.5))
    axes.set(xlabel="error of a result / sum of the magnitudes of its terms", ylabel="fpmath")
    axes.set_title("a product of 64x512 by 512x256 beside the exact one, each dot a result", fontsize=9)
    return figure


def _product(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], mode: str) -> np.ndarray[Any, Any]:
    x, y = gp.LogicalTensor(0, "f32", a.shape), gp.LogicalTensor(2, "f32", (len(a), b.shape[1]))
    w = gp.LogicalTensor(1, "f32", b.shape, property="constant")
    graph = gp.Graph("cpu", fpmath=mode)
    graph.add_op(gp.Op(0, "MatMul", [x, w], [y]))
    graph.finalize()
    [partition] = graph.get_partitions()
    with gp.Engine(threads=1) as engine, partition.compile([x, w], [y], engine) as compiled:
        [result] = compiled.execute(gp.Stream(engine), [gp.Tensor(x, engine, a), gp.Tensor(w, engine, b)])
        return result.numpy().copy()


def draw_error_classes() -> Figure:
    """Which error is a kind of which, and the builtin that catches it too."""
    rows: list[tuple[type, int]] = []

    def visit(cls: type, depth: int) -> None:
        if cls.__module__ == gp.GraphpoolError.__module__:
            rows.append((cls, depth))
            for child in sorted(cls.__subclasses__(), key=lambda each: each.__name__):
                if child not in [found for found, _ in rows]:
                    visit(child, depth + 1)

    visit(gp.GraphpoolError, 0)
    figure, axes = _axes(6.4, 0.24 * len(rows) + 0.5)
    axes.axis("off")
    levels: dict[int, int] = {}
    for row, (cls, depth) in enumerate(rows):
        builtins = [base.__name__ for base in cls.__mro__ if base.__module__ == "builtins"]
        builtins = [name for name in builtins if name not in ("Exception", "BaseException", "object")]
        axes.text(depth * 0.6 + 0.1, -row, cls.__name__, va="center", family="monospace", fontsize=8)
        axes.text(4.6, -row, ", ".join(builtins), va="center", family="monospace", fontsize=8, color="#1a5fb4")
        if depth:
            left = depth * 0.6 - 0.4
            axes.plot([left, left, left + 0.42], [-levels[depth - 1] - 0.35, -row, -row], color="#888", linewidth=0.8)
        levels[depth] = row
    axes.set(xlim=(0, 6.6), ylim=(-len(rows) + 0.4, 1.2))
    axes.text(4.6, 0.9, "also caught as", va="center", fontsize=8, color="#555")
    return figure


PICTURES: dict[str, Callable[[], Figure]] = {
    "partitions": draw_partitions,
    "arena": draw_arena,
    "limits": draw_limits,
    "policies": draw_policies,
    "schedules": draw_schedules,
    "float-modes": draw_errors_of_modes,
    "error-classes": draw_error_classes,
}
"""Name of the file -> what draws it."""


def main(folder: Path) -> None:
    """Write all of them into a folder, as PNG files."""
    for name, draw in PICTURES.items():
        draw().savefig(folder / f"{name}.png", dpi=100, metadata={"Software": None}, pil_kwargs={"optimize": True})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "concepts")
