"""``python -m tests.benchdnn FOLDER [--json OUT] [--only TEXT]``: run benchdnn's graph cases, one record a run.

FOLDER holds ``cases/`` and ``manifest.jsonl``; by default it is ``$GRAPHPOOL_BENCHDNN``. Exit status 1 when a
run fails or falls back to the reference backend. With ``--arenas FACTOR`` nothing runs: the partitions are listed whose
arena exceeds so many times their tensors.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy: two processes share two cores
# The processes below keep freed memory instead of returning it to the system: half of the time went into page faults.
os.environ.setdefault("MALLOC_MMAP_MAX_", "0")
os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(1 << 33))
os.environ.setdefault("MALLOC_TOP_PAD_", str(1 << 28))

DEFAULT = Path(os.environ.get("GRAPHPOOL_BENCHDNN") or Path(__file__).parents[2] / "../shared/data/benchdnn-graph")


def main() -> int:
    """Run and report."""
    from tests.benchdnn.batch import read_batch
    from tests.benchdnn.runner import as_json, as_table, count, list_arenas, read_manifest, run_all

    parser = argparse.ArgumentParser(prog="python -m tests.benchdnn", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT)
    parser.add_argument("--json", type=Path, help="where the records go, as a list")
    parser.add_argument("--only", default="", help="run the rows in which this text occurs")
    parser.add_argument("--batch", type=Path, help="a batch file of benchdnn instead of the manifest")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--arenas", type=float, metavar="FACTOR", help="list large arenas instead of running")
    args = parser.parse_args()
    rows = read_batch(args.batch) if args.batch else read_manifest(args.folder)
    rows = [row for row in rows if args.only in json.dumps(row)]
    if args.arenas is not None:
        for found in list_arenas(args.folder, rows, args.arenas):
            ratio = found.arena_nbytes / max(found.tensors_nbytes, 1)
            print(f"{ratio:8.2f}{found.arena_nbytes:12} {found.case} {found.knobs}: {', '.join(found.kernels)}")
        return 0
    start = time.perf_counter()
    records = []
    for record in run_all(args.folder, rows, args.processes):
        records.append(record)
        if record.status != "passed":
            print(f"{record.status}: {record.case} {record.knobs}: {record.error}", flush=True)
        elif record.fallback:
            print(f"fallback: {record.case} {record.knobs}", flush=True)
    if args.json:
        args.json.write_text(json.dumps([as_json(record) for record in records], indent=1) + "\n")
    print(as_table(count(records)))
    work, peak = sum(record.seconds for record in records), max((record.peak_nbytes for record in records), default=0)
    print(f"{time.perf_counter() - start:.0f} s, {work:.0f} s of processors, at most {peak / 2**30:.2f} GiB a process")
    return int(any(record.status != "passed" or record.fallback for record in records))


if __name__ == "__main__":
    sys.exit(main())
