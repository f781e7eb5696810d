"""Policies side by side on one trace: what each saves at each capacity, beside what foresight could save."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..errors import InvalidArgumentError, UnsupportedError, explain
from .policies import make_policy, policy_names
from .traces import Clairvoyant, Replay, clairvoyant, replay

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from .policies import Item


class Comparison(NamedTuple):
    """One capacity in bytes: what each policy achieved there, by name, and the bounds on what any could."""

    capacity_nbytes: int
    results: dict[str, Replay]
    best: Clairvoyant


def distinct_nbytes(trace: Iterable[Item]) -> int:
    """What all constants of a trace take together. Unit: bytes."""
    return sum({item.key: item.nbytes for item in trace}.values())


def compare_policies(
    trace: Sequence[Item], capacities_nbytes: Iterable[int], policies: Sequence[str] | None = None
) -> list[Comparison]:
    """Replay a trace with every policy at every capacity; one comparison a capacity, in their order.

    Policies are names as for `make_policy`, by default all, installed ones included; InvalidArgumentError for a name
    that no policy has, before anything is replayed. Cost: about a microsecond an access and policy, and `clairvoyant`
    once a capacity.
    """
    names = policy_names() if policies is None else list(policies)
    for name in names:
        make_policy(name)
    return [
        Comparison(nbytes, {name: replay(trace, name, nbytes) for name in names}, clairvoyant(trace, nbytes))
        for nbytes in capacities_nbytes
    ]


def plot_savings(comparisons: Sequence[Comparison], path: str | Path, *, title: str = "") -> None:
    """Draw the share of the cost that each policy saves against the capacity, and the bounds as a band.

    The ending of `path` chooses the format, such as ``.png`` or ``.svg``; InvalidArgumentError for one that matplotlib
    does not write, UnsupportedError where that is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        hint = 'install it with: pip install "graphpool[profile]"'
        raise UnsupportedError(explain("plots need matplotlib", hint=hint)) from error
    rows = sorted(comparisons)
    capacities = [row.capacity_nbytes / 2**20 for row in rows]
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    low, high = ([100 * row.best.achievable_share for row in rows], [100 * row.best.bound_share for row in rows])
    axes.fill_between(capacities, low, high, color="0.85", label="best with foresight: achievable to bound")
    for name in rows[0].results if rows else ():
        axes.plot(capacities, [100 * row.results[name].saved_share for row in rows], marker="o", label=name)
    axes.set(xlabel="capacity (MiB)", ylabel="cost saved (%)", ylim=(0, 100), title=title)
    axes.legend()
    try:
        figure.savefig(path)
    except ValueError as error:
        raise InvalidArgumentError(explain(f"cannot draw {path}", accepted=".png, .svg, .pdf", got=error)) from error
