"""Policies: pure functions from a graph, its costs and a number of streams to a schedule.

    critical_path.py   sequential; list_schedule: k streams, longest way to go first
    wavefront.py       waves of chains, barriers between            (RAF's programs)
    asap.py            greedy chains, streams as needed              (RAF's programs)
    nimble.py          chains by maximum matching: fewest waits
    ios.py             best stages by dynamic programming, searched in stages.py
    auto.py            simulates every policy and takes the best; fold: onto fewer streams

All but the two of RAF end in ``emit``, which places streams and events.
"""

from .asap import asap
from .auto import auto, fold
from .critical_path import list_schedule, sequential
from .ios import ios
from .nimble import nimble
from .wavefront import wavefront

__all__ = ["asap", "auto", "fold", "ios", "list_schedule", "nimble", "sequential", "wavefront"]
