"""Random cases, each a function of its seed."""

from __future__ import annotations

import numpy as np

from . import draw_detection, draw_eltwise, draw_moves, draw_products, draw_rows
from .cases import Case
from .expect import ids_of
from .maker import Maker, Refused

__all__ = ["generate"]

DRAWS = (
    *draw_eltwise.DRAWS, *draw_products.DRAWS, *draw_rows.DRAWS, *draw_moves.DRAWS, *draw_detection.DRAWS,
)  # fmt: skip
WEIGHTS = np.array([weight for weight, _ in DRAWS]) / sum(weight for weight, _ in DRAWS)


def generate(seed: int, special: float = 0.0) -> Case:
    """The case of a seed.

    One in twelve is one op on a tensor of up to 70,000 elements, a third are single draws (an op with its post-ops),
    the others graphs of up to eight draws that read one another's results. With `special`, this share of the elements
    of float inputs are NaN, infinities, zeros and extremes.
    """
    rng = np.random.default_rng([seed, 2])
    large = rng.random() < 1 / 12
    draws = 1 if large or rng.random() < 0.35 else int(rng.integers(2, 9))
    maker = Maker(seed, 70_000 if large else int(rng.choice([300, 1000, 3000, 3000, 20_000])), 0.0 if large else 0.75)
    left = 40
    while draws and left:
        left -= 1
        if _draw(maker, draw_eltwise.DRAWS if large and rng.random() < 0.5 else DRAWS):
            draws -= 1
    if not maker.case.nodes:
        return generate(seed + 2**40, special)
    _drop_unread(maker.case)
    maker.case.options = _options(maker)
    if special:
        maker.case.options["special"] = special
    return maker.case


def _draw(maker: Maker, draws: tuple) -> bool:
    """One draw; what it added stays as far as it got."""
    weights = WEIGHTS if draws is DRAWS else np.array([w for w, _ in draws]) / sum(w for w, _ in draws)
    try:
        draws[int(maker.rng.choice(len(draws), p=weights))][1](maker)
    except Refused:
        return False
    return True


def _drop_unread(case: Case) -> None:
    """Leave out inputs that no op reads."""
    read = {i for node in case.nodes for i in node.inputs}
    case.sources = {i: source for i, source in case.sources.items() if i in read}


def _options(m: Maker) -> dict[str, object]:
    produced = [i for node in m.case.nodes for i in ids_of(node)]
    every = [*m.case.sources, *produced]
    options: dict[str, object] = {"policy": m.choose(["fusion", "fusion", "fusion", "debug"])}
    options["threads"] = m.choose([1, 1, 3])
    options["shapes"] = m.chance(0.3) or m.has_shape_inputs
    if m.chance(0.3):
        options["prefer"] = "latency"
    if m.chance(0.3):
        options["strided"] = [int(i) for i in every if m.chance(0.5)]
    if m.chance(0.3):
        options["opaque"] = [int(i) for i in produced if m.chance(0.7)]
    if m.chance(0.3):
        options["inplace"] = True
    if m.chance(0.2):
        options["scratch"] = m.choose(["shared", "none", "caller"])
    if m.chance(0.2):
        options["weights"] = "scoped"
    scalars = [i for i, source in m.case.sources.items()
               if not source.shape and not source.constant and source.dtype in ("f32", "s32", "s64")]  # fmt: skip
    if scalars and m.chance(0.4):
        options["host_scalars"] = [i for i in scalars if m.chance(0.7)]
    if m.chance(0.15) and not m.has_shape_inputs:
        options["unknown"] = [i for i in m.case.sources if m.chance(0.6)]
    if m.chance(0.15):
        options |= {"schedule": m.choose(["sequential", "wavefront", "asap", "auto"]), "streams": m.integer(1, 3)}
        options["threads"] = 3
    return options
