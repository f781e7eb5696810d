"""Write traces of constant tensors for the simulator of cache policies, as CSV files with key, nbytes, cost.

    python tools/make_constant_traces.py FOLDER [--executions 100] [--seed 0]

A model is the list of its float32 weights, each used once an execution in order; making one again costs
5 µs + bytes / (10 GB/s), a packed copy. Four workloads: one model in a loop (two models), two models picked 80 to 20 by
chance, and one model for half of the time and then another.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import TYPE_CHECKING

from graphpool.cache import Item, write_trace

if TYPE_CHECKING:
    from collections.abc import Sequence

RESNET50_STAGES = [(64, 256, 3), (128, 512, 4), (256, 1024, 6), (512, 2048, 3)]  # width, output channels, blocks
BERT_LAYERS, BERT_WIDTH, BERT_INNER = 12, 768, 3072


def weight(key: str, count: int) -> Item:
    """A float32 weight of `count` elements."""
    nbytes = 4 * count
    return Item(key, nbytes, 5e-6 + nbytes / 10e9)


def resnet50() -> list[Item]:
    """The 53 convolutions and the last product of ResNet-50: 102 MB."""
    weights, channels = [weight("resnet50/stem", 7 * 7 * 3 * 64)], 64
    for stage, (width, out, blocks) in enumerate(RESNET50_STAGES):
        for block in range(blocks):
            name = f"resnet50/{stage}.{block}"
            weights += [weight(f"{name}/reduce", channels * width), weight(f"{name}/conv", 9 * width * width)]
            weights += [weight(f"{name}/expand", width * out)]
            weights += [weight(f"{name}/shortcut", channels * out)] if block == 0 else []
            channels = out
    return [*weights, weight("resnet50/fc", 2048 * 1000)]


def bert_base() -> list[Item]:
    """The six products of each of BERT-base's twelve layers: 340 MB."""
    square, wide = BERT_WIDTH * BERT_WIDTH, BERT_WIDTH * BERT_INNER
    sizes = {"query": square, "key": square, "value": square, "output": square, "up": wide, "down": wide}
    return [weight(f"bert/{layer}/{name}", size) for layer in range(BERT_LAYERS) for name, size in sizes.items()]


def workloads(executions: int, seed: int) -> dict[str, Sequence[Item]]:
    """Every trace by name."""
    first, second = resnet50(), bert_base()
    choice = random.Random(seed)
    mix = [first if choice.random() < 0.8 else second for _ in range(executions)]
    return {
        "resnet50": first * executions,
        "bert": second * executions,
        "mix": [item for model in mix for item in model],
        "switch": first * (executions // 2) + second * (executions - executions // 2),
    }


def main() -> None:
    """Write one file a workload."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--executions", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, trace in workloads(options.executions, options.seed).items():
        write_trace(options.folder / f"{name}.csv", trace)


if __name__ == "__main__":
    main()
