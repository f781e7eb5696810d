"""Runs mutants of a file in child processes: each must end in a result or in an error of graphpool, soon and in bounds.

A child works through many mutants; one that crashes or hangs costs its process alone, and the next mutant starts in a
fresh one. What is a finding:

    escape    an exception that is none of graphpool's
    crash     a signal, or an exit
    hang      more than `HANG_S` seconds of processor time, or `STUCK_S` seconds of any
    memory    more resident memory than before, plus `allowed_nbytes`, plus twice the file, plus `SLACK_NBYTES`
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import math
import multiprocessing
import os
import resource
import signal
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import graphpool as gp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

HANG_S = 10.0
CHUNK = 1000
"""Mutants of one child."""

STUCK_S = 120.0
"""A machine under load may give a child little time."""

SLACK_NBYTES = 64 << 20
"""For what libraries import and cache on first use."""

ADDRESS_SPACE_NBYTES = 4 << 30
"""Of a child, beyond what it starts with: allocations larger than the machine must not reach it."""


@dataclass(frozen=True)
class Target:
    """What reads mutants.

    Attributes
    ----------
    name : str
        Of its folder of kept mutants.
    make : callable
        Seed and number -> the bytes of a mutant, the same ones always.
    consume : callable
        Takes the bytes; may raise errors of graphpool and nothing else.
    allowed_nbytes : int
        What it may use beyond the file. Unit: bytes.
    """

    name: str
    make: Callable[[int, int], bytes]
    consume: Callable[[bytes], None]
    allowed_nbytes: int


@dataclass
class Report:
    """How mutants ended.

    Attributes
    ----------
    outcomes : Counter of str
        ``ran`` or the error's type.
    boundary : Counter of str
        What raised first, of errors that the importer's boundary has turned into graphpool's.
    findings : dict of str to list of bytes
        Kind and place -> mutants.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    boundary: Counter[str] = field(default_factory=Counter)
    findings: dict[str, list[bytes]] = field(default_factory=dict)

    def add(self, outcome: str, place: str, mutant: bytes) -> None:
        """Note how one mutant ended."""
        self.outcomes[outcome] += 1
        if outcome in FINDINGS:
            self.findings.setdefault(f"{outcome}: {place}", []).append(mutant)
        elif place:
            self.boundary[place] += 1

    def text(self) -> str:
        """The summary."""
        lines = [f"{sum(self.outcomes.values())} mutants"]
        lines += [f"  {count:7} {name}" for name, count in self.outcomes.most_common()]
        lines += ["raised first, behind the boundary:"] * bool(self.boundary)
        lines += [f"  {count:7} {place}" for place, count in self.boundary.most_common(40)]
        lines += [f"{len(self.findings)} findings"]
        lines += [f"  {len(mutants):7} {place}" for place, mutants in sorted(self.findings.items())]
        return "\n".join(lines)


FINDINGS = ("escape", "crash", "hang", "memory")


def run(
    target: Target, seed: int, numbers: Iterable[int], until: float = math.inf, report: Report | None = None
) -> Report:
    """Run the mutants of these numbers, one after the other, until that time; says how each ended."""
    report, waiting = report or Report(), list(numbers)
    while waiting and time.monotonic() < until:
        waiting = waiting[_run_child(target, seed, waiting, report) :]
    return report


def main(target: Target, description: str) -> int:
    """The command line of a fuzzer: run as many mutants as asked for, and keep what was found."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop earlier")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz") / target.name)
    given = parser.parse_args()
    until, report = time.monotonic() + 60 * given.minutes, Report()
    for first in range(0, given.count, CHUNK):
        run(target, given.seed, range(first, min(first + CHUNK, given.count)), until, report)
    print(report.text())
    for path in keep(report, given.keep):
        print(f"kept {path}")
    return bool(report.findings)


def replay(target: Target, mutant: bytes) -> Report:
    """Run one given mutant."""
    fixed = Target(target.name, lambda seed, number: mutant, target.consume, target.allowed_nbytes)
    return run(fixed, 0, [0])


def keep(report: Report, folder: Path) -> list[Path]:
    """Write the smallest mutant of each finding; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for mutants in report.findings.values():
        smallest = min(mutants, key=len)
        paths.append(folder / f"{hashlib.sha256(smallest).hexdigest()[:12]}.bin")
        paths[-1].write_bytes(smallest)
    return paths


def _run_child(target: Target, seed: int, numbers: list[int], report: Report) -> int:
    """Run mutants in one child until they or it end; returns how many are done."""
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(target, seed, numbers, writer))
    child.start()
    writer.close()
    done = 0
    try:
        while done < len(numbers) and reader.poll(STUCK_S):
            outcome, place = reader.recv()
            report.add(outcome, place, target.make(seed, numbers[done]) if outcome in FINDINGS else b"")
            done += 1
        if done < len(numbers):
            child.kill()
            report.add("hang", "waiting", target.make(seed, numbers[done]))
            done += 1
    except EOFError:
        child.join()
        outcome = "hang" if child.exitcode == -signal.SIGPROF else "crash"
        report.add(outcome, f"exit code {child.exitcode}", target.make(seed, numbers[done]))
        done += 1
    finally:
        child.join()
        reader.close()
    return done


def _work(target: Target, seed: int, numbers: list[int], writer: Any) -> None:
    """The child: consume mutants, and send how each ended."""
    warnings.simplefilter("ignore")
    faulthandler.disable()  # a crash is reported by the parent
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = _status("VmSize") + ADDRESS_SPACE_NBYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)
    for number in numbers:
        mutant = target.make(seed, number)
        before = _reset_peak()
        signal.setitimer(signal.ITIMER_PROF, HANG_S)
        outcome, place = _consume(target, mutant)
        signal.setitimer(signal.ITIMER_PROF, 0)
        used = _status("VmHWM") - before
        if outcome != "escape" and used > target.allowed_nbytes + 2 * len(mutant) + SLACK_NBYTES:
            outcome, place = "memory", place or outcome
        writer.send((outcome, place))
    writer.close()


def _consume(target: Target, mutant: bytes) -> tuple[str, str]:
    try:
        target.consume(mutant)
    except gp.GraphpoolError as error:
        return type(error).__name__, "" if error.__cause__ is None else _place(error.__cause__)
    except Exception as error:
        return "escape", _place(error)
    return "ran", ""


def _place(error: BaseException) -> str:
    """Type and last line of our own that an exception came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if f"{os.sep}graphpool{os.sep}" in frame.filename] or frames[-1:]
    where = f"{Path(ours[-1].filename).name}:{ours[-1].name}:{ours[-1].lineno}" if ours else "?"
    return f"{type(error).__name__} {where}"


def _reset_peak() -> int:
    """Start the peak of resident memory anew; returns what is resident now. Unit: bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(name: str) -> int:
    """A line of the process's memory. Unit: bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))
