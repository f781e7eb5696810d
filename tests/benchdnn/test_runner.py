"""The runner itself: every row gives one record, whatever becomes of its process."""

import os
import signal
import threading
from multiprocessing import active_children

import graphpool as gp
from tests.benchdnn.runner import list_arenas, run_all


def write_case(folder, name, shape):
    """A product, its softmax and a pointwise op of that batch."""
    (folder / "cases").mkdir(exist_ok=True)
    graph = gp.Graph()
    x, w = gp.LogicalTensor(0, "f32", shape), gp.LogicalTensor(1, "f32", (*shape[:-2], shape[-1], 4))
    y, z = (gp.LogicalTensor(number, "f32", (*shape[:-1], 4)) for number in (2, 3))
    graph.add_op(gp.Op(0, "MatMul", [x, w], [y]))
    graph.add_op(gp.Op(1, "ReLU", [y], [z]))
    graph.to_json(folder / "cases" / name)
    return {"suite": "s", "case": name, "expected-n-partitions": "0"}


def test_shapes_with_a_zero(tmp_path):
    rows = [write_case(tmp_path, f"{k}.json", shape) for k, shape in enumerate([(3, 0, 5), (3, 2, 0), (0, 2, 5)])]
    records = list(run_all(tmp_path, rows, processes=1))
    assert [(record.status, record.error) for record in records] == [("passed", None)] * 3


def test_a_process_that_dies_fails_its_row_only(tmp_path):
    """The case is a pipe nobody writes into, so that its process hangs in it until it is killed."""
    rows = [write_case(tmp_path, f"{k}.json", (2, 3, 5)) for k in range(6)]
    path = tmp_path / "cases" / "2.json"
    path.unlink()
    os.mkfifo(path)
    records = run_all(tmp_path, rows)
    done = [next(records) for _ in range(5)]
    threading.Timer(0.2, lambda: [os.kill(child.pid, signal.SIGKILL) for child in active_children()]).start()
    done += records
    assert sorted((record.case, record.status) for record in done) == [
        (f"{k}.json", "failed" if k == 2 else "passed") for k in range(6)
    ]
    assert "its process ended with status -9" in next(record.error for record in done if record.case == "2.json")


def test_large_arenas_are_listed(tmp_path):
    rows = [write_case(tmp_path, f"{k}.json", (shape, 400)) for k, shape in enumerate((1, 1000))]
    found = list(list_arenas(tmp_path, rows, 0.1))
    assert [(arena.case, arena.kernels) for arena in found] == [("0.json", ("f32_matmul_simd",))]
    assert found[0].arena_nbytes > 0.1 * found[0].tensors_nbytes == 0.1 * 4 * (400 + 4 * 400 + 4)
    assert len(list(list_arenas(tmp_path, rows, -1.0))) == 2  # no arena is one of 0 bytes
