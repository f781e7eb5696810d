"""Compares the CPU backend, the reference backend and the oracle on random graphs.

    python -m tests.fuzz.differential --count 20000 --seed 1      # for a night
    python -m tests.fuzz.differential --replay tests/fuzz/corpus  # what failed once

Cases run in another process, so that one that ends the interpreter is a finding as well. What fails is made small and
written to a folder as JSON, from where it is replayed. The exit status is 1 if anything failed.

With ``--special`` elements that docs/concepts/numerics.md leaves open are not compared (`freedoms`).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tests.oracle import KINDS

from .cases import Case
from .compare import difference
from .generate import generate
from .shrink import shrink

__all__ = ["corpus", "main"]

CORPUS = Path(__file__).parent / "corpus"


def corpus(folder: Path = CORPUS) -> list[Path]:
    """The cases that are kept."""
    return sorted(folder.glob("*.json"))


def _work(first: int, last: int, special: float, folder: Path, is_shrinking: bool) -> None:
    """Run cases one after another and say of each on stdout when it began and how it went."""
    for seed in range(first, last):
        print(f"start {seed}", flush=True)
        case = generate(seed, special)
        problem = difference(case)
        if problem is None:
            print(f"same {' '.join(sorted({node.kind for node in case.nodes}))}", flush=True)
            continue
        if is_shrinking:
            case = shrink(case, problem)
            problem = difference(case) or problem
        folder.mkdir(parents=True, exist_ok=True)
        kind = case.nodes[-1].kind
        path = folder / f"{kind.lower()}_{seed}.json"
        path.write_text(case.to_json())
        print(f"differ {seed} {path.name} {' '.join(problem.split())}", flush=True)


class Search:
    """A run of the fuzzer: counts, and what was found."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.seed, self.done = options.seed, 0
        self.kinds: Counter[str] = Counter()
        self.found: list[str] = []
        self.began = time.monotonic()

    def go(self) -> None:
        """Run all cases, starting another process behind each that ended early."""
        last = self.options.seed + self.options.count
        while self.seed < last:
            command = [sys.executable, "-m", "tests.fuzz.differential", "--work", str(self.seed), str(last),
                       "--out", str(self.options.out), "--special", str(self.options.special),
                       *(["--whole"] if self.options.whole else [])]  # fmt: skip
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    self.read(line.strip())
            if process.returncode:
                self.report(f"{self.seed}: the process ended with status {process.returncode}")
                self.seed += 1

    def read(self, line: str) -> None:
        """One message of the process."""
        word, _, rest = line.partition(" ")
        if word == "start":
            self.seed = int(rest)
            return
        if word == "same":
            self.kinds.update(rest.split())
        elif word == "differ":
            self.report(rest)
        self.done += 1
        self.seed += 1
        if self.done % 500 == 0:
            rate = self.done / (time.monotonic() - self.began)
            print(
                f"{self.done} of {self.options.count} cases, {len(self.found)} differ, {rate:.1f} a second", flush=True
            )

    def report(self, text: str) -> None:
        """Keep and print a finding."""
        self.found.append(text)
        print(text, flush=True)

    def summary(self) -> None:
        """What was run."""
        print(f"{self.done} cases in {time.monotonic() - self.began:.0f} s, {len(self.found)} differ")
        print("ops:", ", ".join(f"{kind} {count}" for kind, count in self.kinds.most_common()))
        print("never in a case that agreed:", ", ".join(sorted(set(KINDS) - set(self.kinds))) or "none")


def _replay(paths: list[Path]) -> int:
    failed = 0
    for path in paths:
        problem = difference(Case.load(path))
        failed += problem is not None
        print(f"{path.name}: {problem or 'same'}")
    return 1 if failed else 0


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.differential", description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=1000, help="cases (default: 1000)")
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the others count on (default: 0)")
    parser.add_argument("--special", type=float, default=0.0, help="share of NaN, infinities and extremes in inputs")
    parser.add_argument("--out", type=Path, default=Path("fuzz-found"), help="folder for cases that differ")
    parser.add_argument("--whole", action="store_true", help="do not make failing cases small")
    parser.add_argument("--replay", type=Path, help="run the cases of a file or folder instead")
    parser.add_argument("--work", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.replay is not None:
        return _replay(corpus(options.replay) if options.replay.is_dir() else [options.replay])
    if options.work is not None:
        _work(*options.work, options.special, options.out, not options.whole)
        return 0
    search = Search(options)
    search.go()
    search.summary()
    return 1 if search.found else 0


if __name__ == "__main__":
    sys.exit(main())
