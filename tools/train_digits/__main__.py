"""Train both models from fixed seeds, write them and the held-out images, print the held-out accuracy.

Usage: ``python -m tools.train_digits [--out DIRECTORY] [MODEL ...]`` from the root of the repository.

The optimiser is Adam with decoupled weight decay (Loshchilov and Hutter, 2019) under a linear warm-up and a cosine
decay. The number of epochs is fixed and the last weights are kept: the held-out images choose nothing.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from onnx.reference import ReferenceEvaluator
from sklearn.datasets import load_digits

from .autodiff import Training
from .export import export
from .models import CLASSES, cnn, transformer

if TYPE_CHECKING:
    from collections.abc import Callable

    from .autodiff import Array, Node

SPLIT_SEED = 20
HELD_OUT_FRACTION = 0.2
BATCH = 64
SHIFT_PROBABILITY = 0.3
LABEL_SMOOTHING = 0.1
BETAS = (0.9, 0.999)
DEMO = Path(__file__).resolve().parents[2] / "graphpool" / "demo"


@dataclass(frozen=True)
class Recipe:
    """How one model is trained and exported; `learning_rate` is the peak of its schedule."""

    model: Callable[[Any, Any], Any]
    opset: int
    seed: int
    epochs: int
    learning_rate: float
    weight_decay: float


RECIPES = {
    "digits_cnn": Recipe(cnn, opset=17, seed=1, epochs=60, learning_rate=6e-3, weight_decay=0.3),
    "digits_transformer": Recipe(transformer, opset=20, seed=2, epochs=240, learning_rate=6e-3, weight_decay=0.4),
}


def split(labels: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Sorted indices (train, held out): of each class the same fraction is held out, rounded up."""
    rng = np.random.default_rng(SPLIT_SEED)
    held: list[int] = []
    for digit in range(CLASSES):
        members = rng.permutation(np.flatnonzero(labels == digit))
        held.extend(members[: math.ceil(HELD_OUT_FRACTION * len(members))])
    return np.setdiff1d(np.arange(len(labels)), held), np.sort(held)


def shifted(images: Array, rng: np.random.Generator) -> Array:
    """Each image moved by one pixel, with `SHIFT_PROBABILITY` along each axis, zero where nothing was."""
    windows: Array = sliding_window_view(np.pad(images[:, 0], ((0, 0), (1, 1), (1, 1))), (8, 8), axis=(1, 2))
    either = SHIFT_PROBABILITY / 2
    dy, dx = rng.choice(3, (2, len(images)), p=(either, 1 - SHIFT_PROBABILITY, either))
    moved: Array = windows[np.arange(len(images)), dy, dx]
    return moved[:, None]


def loss_gradient(logits: Array, labels: np.ndarray[Any, Any]) -> Array:
    """Gradient, with respect to the logits, of the mean cross entropy against smoothed labels."""
    likely = np.exp(logits - logits.max(axis=1, keepdims=True))
    likely /= likely.sum(axis=1, keepdims=True)
    target = np.eye(CLASSES, dtype=np.float32)[labels] * (1 - LABEL_SMOOTHING) + LABEL_SMOOTHING / CLASSES
    gradient: Array = (likely - target) / np.float32(len(labels))
    return gradient


class AdamW:
    """Adam with weight decay on matrices and kernels only, not on scales, biases or positions."""

    def __init__(self, parameters: dict[str, Node], weight_decay: float) -> None:
        self._parameters, self._weight_decay, self._steps = parameters, weight_decay, 0
        self._moments = {name: np.zeros((2, *node.value.shape), np.float32) for name, node in parameters.items()}

    def step(self, rate: float) -> None:
        """Move every parameter against its gradient and forget the gradient."""
        self._steps += 1
        unbias = [1 - beta**self._steps for beta in BETAS]
        for name, node in self._parameters.items():
            grad, moments = node.gradient, self._moments[name]
            for moment, beta, sample in zip(moments, BETAS, (grad, grad * grad), strict=True):
                moment += (1 - beta) * (sample - moment)
            decay = self._weight_decay if name.endswith("weight") else 0.0
            step = (moments[0] / unbias[0]) / (np.sqrt(moments[1] / unbias[1]) + 1e-8)
            node.value -= np.float32(rate) * (step + decay * node.value)
            node.grad = None


def learning_rate(progress: float, peak: float) -> float:
    """Linear from 0 over the first twentieth of the training (`progress` in 0..1), then half a cosine to 0."""
    return peak * min(progress * 20, 0.5 + 0.5 * math.cos(math.pi * progress))


def train(recipe: Recipe, images: Array, labels: np.ndarray[Any, Any]) -> Training:
    """Trained state after all epochs; the same on every run with one BLAS on one machine."""
    state, rng = Training(recipe.seed), np.random.default_rng(recipe.seed)
    recipe.model(state, state.input(images[:1]))  # creates the parameters
    optimiser = AdamW(state.parameters, recipe.weight_decay)
    batches = len(images) // BATCH
    for epoch in range(recipe.epochs):
        order = rng.permutation(len(images))
        for batch in range(batches):
            chosen = order[batch * BATCH : (batch + 1) * BATCH]
            logits = recipe.model(state, state.input(shifted(images[chosen], rng)))
            state.backward(logits, loss_gradient(logits.value, labels[chosen]))
            progress = (epoch * batches + batch + 1) / (recipe.epochs * batches)
            optimiser.step(learning_rate(progress, recipe.learning_rate))
    return state


def write_model(name: str, directory: Path, images: Array, labels: np.ndarray[Any, Any]) -> Path:
    """Train `name` on these images and write its ONNX file."""
    recipe = RECIPES[name]
    proto = export(recipe.model, train(recipe, images, labels), name, recipe.opset)
    path = directory / f"{name}.onnx"
    path.write_bytes(proto.SerializeToString(deterministic=True))
    return path


def count_correct(path: Path, images: Array, labels: np.ndarray[Any, Any]) -> int:
    """Images that the written file classifies rightly, by ONNX's own reference evaluator."""
    [probabilities] = ReferenceEvaluator(str(path)).run(None, {"image": images})
    return int((np.argmax(probabilities, axis=1) == labels).sum())


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.train_digits", description="Train the demonstration models.")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"any of {', '.join(RECIPES)} (default: all)")
    parser.add_argument("--out", type=Path, default=DEMO, help="directory to write to (default: %(default)s)")
    arguments = parser.parse_args()
    if unknown := set(arguments.models) - set(RECIPES):
        parser.error(f"unknown models: {', '.join(sorted(unknown))}")
    digits = load_digits()
    images, labels = (digits.images[:, None] / 16).astype(np.float32), digits.target.astype(np.int64)
    kept, held = split(labels)
    test = {"images": images[held], "labels": labels[held], "indices": held, "split_seed": np.int64(SPLIT_SEED)}
    np.savez_compressed(arguments.out / "digits_test.npz", **test)
    for name in arguments.models or RECIPES:
        started = time.perf_counter()
        path = write_model(name, arguments.out, images[kept], labels[kept])
        seconds = time.perf_counter() - started
        correct = count_correct(path, images[held], labels[held])
        share = f"{correct}/{len(held)} held-out images ({correct / len(held):.2%})"
        print(f"{name}: {share}, {path.stat().st_size} bytes, trained in {seconds:.0f} s")


if __name__ == "__main__":
    main()
