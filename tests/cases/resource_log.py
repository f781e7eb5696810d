"""The calls of a `LoggingResource`, read from its file and repeated on another resource."""

import csv
from pathlib import Path

from graphpool.errors import OutOfMemoryError


def read_log(path):
    """The calls in the order of the log: action, address in hexadecimal digits, bytes, alignment."""
    with Path(path).open(newline="", encoding="utf-8") as file:
        return [
            (row["action"], row["address"], int(row["nbytes"]), int(row["alignment"])) for row in csv.DictReader(file)
        ]


def replay(calls, resource):
    """Repeat calls on `resource` in one thread, so that two resources see the same requests.

    Returns
    -------
    dict
        ``calls``, ``refused`` (requests that were refused now), ``leaked_nbytes`` (never given back in the log; freed
        at the end).
    """
    live, refused = {}, 0
    for action, name, nbytes, alignment in calls:
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
    leaked = sum(nbytes for _, nbytes, _ in live.values())
    for held in live.values():
        resource.deallocate(*held)
    return {"calls": len(calls), "refused": refused, "leaked_nbytes": leaked}
