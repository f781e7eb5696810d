"""``python -m tests.fuzz.graphs KIND [--count N] [--start N] [--seed N]``: mutants of one kind of file.

KIND is ``json`` (graphs), ``plan`` (buffers) or ``trace`` (constants). Mutants run in a child process, one after the
other. One that raises something else than an error of graphpool, kills the process, takes more than 10 seconds or more
memory than it may is a fault; the first of each sort is written to ``tests/fuzz/corpus/KIND/``. Exit status 1 when
there is one.
"""

from __future__ import annotations

import argparse
import resource
import select
import subprocess
import sys
import time
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory

CORPUS = Path(__file__).parent / "corpus"
PROGRAM = ["-m", "tests.fuzz.graphs"]
DEADLINE_S = 10
HANGS = "no end within"
ROOM_MB = 256
"""Memory that a child may have beyond what it has with its modules and seeds loaded: the engine's limit, NumPy's arrays
of the reference backend, Python, and twice the file."""


def main() -> int:
    """Run mutants in children until all have run."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.graphs", description=__doc__)
    parser.add_argument("kind", choices=("json", "plan", "trace"))
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return run_child(args.kind, args.start, args.count, args.seed)
    faults: dict[str, int] = {}
    start, end, began = args.start, args.start + args.count, time.perf_counter()
    while start < end:
        start, fault = run_until_it_dies(args.kind, start, end - start, args.seed, faults)
        if fault and fault.startswith(HANGS):  # once more, since other work may have stopped it
            _, fault = run_until_it_dies(args.kind, start - 1, 1, args.seed, faults)
        if fault:
            keep(args.kind, start - 1, args.seed, fault, faults)
    print(f"{args.count} mutants of {args.kind}, {len(faults)} faults, {time.perf_counter() - began:.0f} s")
    return int(bool(faults))


def run_until_it_dies(kind: str, start: int, count: int, seed: int, faults: dict[str, int]) -> tuple[int, str | None]:
    """Run one child; the number of the first mutant that did not run, and the fault of the one before it."""
    command = [sys.executable, *PROGRAM, kind, "--child", f"--start={start}", f"--count={count}"]
    with subprocess.Popen([*command, f"--seed={seed}"], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        number = start
        child.stdout.readline()  # comes when everything is loaded
        while select.select([child.stdout], [], [], DEADLINE_S)[0]:
            line = child.stdout.readline()
            if not line:
                status = child.wait()
                return (start + count, None) if number == start + count else (number + 1, f"status {status}")
            if fault := line.rstrip("\n"):
                keep(kind, number, seed, fault, faults)
            number += 1
        child.kill()
    return number + 1, f"{HANGS} {DEADLINE_S} s"


def keep(kind: str, number: int, seed: int, fault: str, faults: dict[str, int]) -> None:
    """Print a fault; the first of its sort goes to the corpus."""
    from tests.fuzz.graph_targets import KINDS, mutant

    sort = fault.partition("\t")[0]
    faults[sort] = faults.get(sort, 0) + 1
    if faults[sort] == 1:
        path = CORPUS / kind / f"{seed}-{number}.{KINDS[kind].suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(mutant(kind, number, seed))
        print(f"{path}: {fault}", flush=True)


def run_child(kind: str, start: int, count: int, seed: int) -> int:
    """Run mutants and print one line for each: its fault, or nothing."""
    from tests.fuzz.graph_targets import mutant, survives

    mutant(kind, start, seed)
    print("ready", flush=True)
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + (ROOM_MB << 20),) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with TemporaryDirectory() as folder:
        for number in range(start, start + count):
            data, fault = mutant(kind, number, seed), ""
            try:
                survives(kind, data, Path(folder))
            except Exception as error:  # whatever it is, it is a fault
                frame = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{type(error).__name__} in {Path(frame.filename).name}:{frame.lineno}"
                fault = f"{where}\t{str(error)[:200]!r}"
            print(fault, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
