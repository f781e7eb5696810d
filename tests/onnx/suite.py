"""Runs the cases of ``onnx.backend.test`` through the backend, and says what computed each of them.

``python -m tests.onnx.suite`` prints the counts; with ``--write`` it renews ``cases.tsv``, the committed table.

    native    every op that computes ran on the CPU backend's kernels
    mixed     some did; others ran on the host (NumPy or ONNX's evaluator) or on the reference backend
    fallback  none did
    none      nothing is left to compute: the outputs are inputs, constants or shapes
"""

from __future__ import annotations

import argparse
import os
import tempfile
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("cases.tsv")
KINDS = {
    "OnnxBackendNodeModelTest": "node",
    "OnnxBackendRealModelTest": "light",
    "OnnxBackendPyTorchConvertedModelTest": "converted",
    "OnnxBackendPyTorchOperatorModelTest": "operator",
    "OnnxBackendSimpleModelTest": "simple",
}


@dataclass
class Record:
    """One case: what ran it, and why it failed if it did."""

    kind: str
    name: str
    placement: str = "none"
    error: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Kind and name."""
        return self.kind, self.name


def placement_of(executables: list[Any]) -> str:
    """One of native, mixed, fallback, none for the forms that a case used."""
    backends = {
        p.backend.name if p.is_supported else "host"
        for e in executables
        for p, names in zip(e.partitions, e.implementations, strict=True)
        if names not in (("data_dependent",), ("loop",), ("branch",))
    }
    elsewhere = bool(backends - {"cpu"}) or any(executable.precomputed for executable in executables)
    if "cpu" in backends:
        return "mixed" if elsewhere else "native"
    return "fallback" if elsewhere else "none"


def run_suite(threads: int = 1) -> list[Record]:
    """Run all cases for the CPU, one after the other."""
    import graphpool as gp

    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as home, gp.Engine("cpu", threads=threads) as engine:
        warnings.simplefilter("ignore")
        used: list[Any] = []
        os.environ["ONNX_HOME"], before = home, os.environ.get("ONNX_HOME")
        try:
            return [_run(test, name, kind, used) for kind, test, name in _find_tests(engine, used)]
        finally:
            os.environ.pop("ONNX_HOME")
            os.environ.update({} if before is None else {"ONNX_HOME": before})


def _find_tests(engine: Any, used: list[Any]) -> list[tuple[str, type, str]]:
    """Kind, class and method of every case."""
    import onnx.backend.test

    suite = onnx.backend.test.BackendTest(_recorder(engine, used), __name__)
    suite.include(r"_cpu$")
    classes = suite.test_cases
    return [
        (kind, classes[title], name)
        for title, kind in KINDS.items()
        for name in sorted(dir(classes[title]))
        if name.startswith("test_") and name.endswith("_cpu")
    ]


def _recorder(engine: Any, used: list[Any]) -> type:
    """The backend, noting the executables of each run in `used`."""
    import graphpool as gp
    from graphpool.onnx import backend

    class Rep(backend.GraphpoolBackendRep):
        def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
            given = self._by_name(inputs)
            results = super().run(given)
            used.extend(self.model.specialise(given).with_inner())
            return results

    class Recorder(backend.GraphpoolBackend):
        @classmethod
        def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> Rep:
            return Rep(gp.onnx.load(model, engine=engine, **kwargs))

    return Recorder


def _run(test: type, method: str, kind: str, used: list[Any]) -> Record:
    used.clear()
    record = Record(kind, method.removesuffix("_cpu"))
    try:
        getattr(test(method), method)()
    except Exception as error:  # whatever a case raises is its result
        record.error = f"{type(error).__name__}: {error}".strip() or type(error).__name__
    record.placement = placement_of(used)
    return record


def as_table(records: list[Record]) -> str:
    """The committed table: a header with the corpus' version, then one line a case."""
    import onnx

    lines = [f"# onnx {onnx.__version__}", "kind\tcase\tplacement"]
    lines += sorted(f"{record.kind}\t{record.name}\t{record.placement}" for record in records)
    return "\n".join(lines) + "\n"


def count(records: list[Record]) -> str:
    """Cases, passes and placements of each kind, for people."""
    lines = [f"{'kind':<10}{'cases':>7}{'pass':>7}{'native':>8}{'mixed':>7}{'fallback':>10}{'none':>6}"]
    for kind in KINDS.values():
        own = [record for record in records if record.kind == kind]
        places = Counter(record.placement for record in own)
        passed = sum(not record.error for record in own)
        numbers = [places[place] for place in ("native", "mixed", "fallback", "none")]
        lines.append("{:<10}{:>7}{:>7}{:>8}{:>7}{:>10}{:>6}".format(kind, len(own), passed, *numbers))
    return "\n".join(lines)


def main() -> None:
    """Print the counts and the misses; renew the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.onnx.suite")
    parser.add_argument("--write", action="store_true", help=f"renew {TABLE.name}")
    write = parser.parse_args().write
    records = run_suite()
    for record in records:
        if record.error:
            print(f"{record.kind} {record.name}: {record.error.splitlines()[0][:160]}")
    print(count(records))
    if write:
        TABLE.write_text(as_table(records))


if __name__ == "__main__":
    main()
