"""Run a log of `LoggingResource` again: ``python bench/replay.py log.csv`` prints time, peak, refusals and leaks.

Calls are replayed in the order of the log, in one thread, so that two resources see the same requests.
"""

import csv
import sys
import time
from pathlib import Path

from graphpool.errors import OutOfMemoryError
from graphpool.memory import HostResource, StatisticsResource


def replay(path, resource):
    """Repeat the calls of the log at `path` on `resource`.

    Returns
    -------
    dict
        ``seconds``, ``calls``, ``refused`` (requests that were refused now), ``leaked_nbytes`` (never given back in the
        log; freed at the end).
    """
    live, refused, calls = {}, 0, 0
    with Path(path).open(newline="", encoding="utf-8") as file:
        rows = [
            (row["action"], row["address"], int(row["nbytes"]), int(row["alignment"])) for row in csv.DictReader(file)
        ]
    start = time.perf_counter()
    for action, name, nbytes, alignment in rows:
        calls += 1
        if action == "deallocate" and name in live:
            resource.deallocate(live.pop(name)[0], nbytes, alignment)
        elif action != "deallocate":
            try:
                address = resource.allocate(nbytes, alignment)
            except OutOfMemoryError:
                refused += 1
                continue
            if action == "refuse":
                resource.deallocate(address, nbytes, alignment)
            else:
                live[name] = (address, nbytes, alignment)
    seconds = time.perf_counter() - start
    leaked = sum(nbytes for _, nbytes, _ in live.values())
    for held in live.values():
        resource.deallocate(*held)
    return {"seconds": seconds, "calls": calls, "refused": refused, "leaked_nbytes": leaked}


if __name__ == "__main__":
    counted = StatisticsResource(HostResource())
    for name, value in replay(sys.argv[1], counted).items():
        print(f"{name:16}{value}")
    print(f"{'peak_nbytes':16}{counted.stats().peak_nbytes}")
