"""What does capacity of the constant tensor cache buy: how much faster is a model with more packed weights kept?

    python -m bench.profile.cache [MODEL] [--shape batch=8] [--parts 8] [--json FILE] [--png FILE] [--html FILE]

The model is loaded and run at capacities from 0 to all that it packs. Constants that find no room are declined, and the
kernels for plain weights run in their place.
"""

from __future__ import annotations

from typing import Any

import graphpool as gp
from bench.profile.common import KIB, Report, axes_of, finish, inputs_of, median_ms, parser_of, warm_up
from graphpool.cache import constant_tensor_cache

POLICIES = ("no_evict", "lru", "cost")


def measure_one(options: Any, capacity_nbytes: int | None, policy: str) -> dict[str, Any]:
    """The model with one capacity, on an engine of its own."""
    cache = constant_tensor_cache("cpu")
    cache.set_capacity(capacity_nbytes, policy=policy)
    before = cache.stats()
    with gp.Engine(threads=options.threads) as engine, gp.onnx.load(options.model, engine=engine) as model:
        inputs = inputs_of(model, options)
        warm_up(model, inputs)
        outputs = model.run(inputs)
        latency, after = median_ms(lambda: model.run(inputs, outputs), options.seconds), cache.stats()
        return {
            "policy": policy, "capacity_nbytes": capacity_nbytes, "cached_nbytes": after.nbytes,
            "engine_peak_nbytes": engine.budget.peak, "declined": after.declined - before.declined,
            "evictions": after.evictions - before.evictions, "latency_ms": latency,
        }  # fmt: skip


def measure(options: Any) -> Report:
    """All capacities, under one policy or each."""
    whole = measure_one(options, None, "no_evict")["cached_nbytes"]
    if not whole:
        raise SystemExit("the model packs no constants")
    policies = POLICIES if options.policy == "all" else (options.policy,)
    sizes = sorted({whole * part // options.parts for part in range(options.parts + 1)})
    rows = [measure_one(options, size, policy) for policy in policies for size in sizes]
    constant_tensor_cache("cpu").set_capacity(None, policy="no_evict")

    title = f"Constant tensor cache and latency of {options.model.stem}"

    def draw() -> Any:
        figure, axes = axes_of("capacity of the constant tensor cache, KiB", "median latency, ms", title)
        for policy, marker in zip(policies, "os^", strict=False):
            found = [row for row in rows if row["policy"] == policy]
            xs, ys = [row["capacity_nbytes"] / KIB for row in found], [row["latency_ms"] for row in found]
            axes.plot(xs, ys, marker=marker, alpha=0.8, label=policy)
        axes.set_ylim(0)
        axes.set_xlim(0)
        figure.legend(loc="outside right upper", frameon=False, title="policy")
        return figure

    lines = [f"all packed constants take {whole / KIB:,.1f} KiB"]
    return Report(title, rows, draw, lines)


if __name__ == "__main__":
    parser = parser_of(__doc__ or "")
    parser.add_argument("--parts", type=int, default=8, help="into how many steps capacities are divided (default: 8)")
    parser.add_argument("--policy", choices=(*POLICIES, "all"), default="no_evict", help="default: no_evict")
    given = parser.parse_args()
    finish(measure(given), given)
