"""What of an arena no run writes: the pages, and the prediction of the process's memory that counts on it."""

import json
import mmap
import random
import subprocess
import sys

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphpool as gp
from graphpool.runtime.untouched import untouched_nbytes

HUGE, PAGE, MIB = 2**21, mmap.PAGESIZE, 2**20


@pytest.mark.parametrize(("used", "touched", "arena", "expected"), [
    (HUGE - 1, [], HUGE - 1, HUGE - 2 * PAGE),  # in the C heap, where it begins anywhere in a page
    (8 * PAGE, [(4 * PAGE, 5 * PAGE)], 8 * PAGE, 4 * PAGE),
    (8 * PAGE, [(PAGE, 7 * PAGE)], 8 * PAGE, 0),
    (HUGE, [], HUGE, HUGE),
    (HUGE, [(5, 6)], HUGE, 0),
    (3 * HUGE, [(HUGE, HUGE + 1)], 3 * HUGE, 2 * HUGE),
    (3 * HUGE, [(HUGE - 1, HUGE + 1)], 3 * HUGE, HUGE),
    (HUGE + 2 * PAGE, [(0, HUGE)], HUGE + 2 * PAGE, 2 * PAGE),
    (HUGE + 2 * PAGE, [(0, HUGE + 1)], HUGE + 2 * PAGE, PAGE),
    (HUGE + 2 * PAGE, [(0, HUGE)], 2 * HUGE, 0),  # where a huge page lies in a larger arena
    (HUGE + 2 * PAGE + 7, [(0, HUGE)], HUGE + 2 * PAGE + 7, 2 * PAGE),
    (4 * HUGE, [(3 * HUGE, 4 * HUGE), (0, 1), (0, 1), (9, 9)], 4 * HUGE, 2 * HUGE),
])  # fmt: skip
def test_pages(used, touched, arena, expected):
    assert untouched_nbytes(used, touched, arena) == expected


@pytest.mark.parametrize("seed", range(20))
def test_pages_one_by_one(seed):
    rng = random.Random(seed)
    nbytes = rng.randrange(HUGE, 6 * HUGE)
    begins = [rng.randrange(nbytes) for _ in range(rng.randrange(4))]
    touched = [(begin, min(begin + rng.randrange(1, HUGE), nbytes)) for begin in begins]
    pages = [(k, k + HUGE) for k in range(0, nbytes // HUGE * HUGE, HUGE)]
    pages += [(k, k + PAGE) for k in range(nbytes // HUGE * HUGE, nbytes // PAGE * PAGE, PAGE)]
    free = [page for page in pages if all(end <= page[0] or page[1] <= begin for begin, end in touched)]
    assert untouched_nbytes(nbytes, touched, nbytes) == sum(end - begin for begin, end in free)


ROWS, DEPTH, COLS = 512, 2048, 4096
CHILD = """
import json, re, sys
from pathlib import Path
import numpy as np
import graphpool as gp
from graphpool.onnx.loader import importer

path, capacity, shapes = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
importer()
gp.set_constant_tensor_cache_capacity("cpu", capacity)
with gp.onnx.load(path, threads=1, shapes=shapes) as model:
    x = np.ones(model.predict_peak().shapes["x"] if shapes else (512, 2048), np.float32)
    peak = model.predict_peak() if shapes else model.predict_peak({"x": x})
    found = [peak, peak.untouched_nbytes, peak.resident_nbytes]
    Path("/proc/self/clear_refs").write_text("5")
    model.run({"x": x})
    high = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
    again = model.predict_peak({"x": x})
    print(json.dumps([*found, high, model.engine.budget.peak, again, again.untouched_nbytes]))
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A product with weights of 8 bits, whose kernels read them packed alone."""
    rng = np.random.default_rng(0)
    weights = rng.integers(-127, 128, (DEPTH, COLS), np.int8), rng.random(COLS).astype(np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"], axis=1),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows", d]) for n, d in (("x", DEPTH), ("y", COLS)))
    graph = helper.make_graph(
        nodes, "g", [x], [y], [numpy_helper.from_array(a, n) for a, n in zip(weights, "qs", strict=True)]
    )
    found = tmp_path_factory.mktemp("untouched") / "model.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    found.write_bytes(model.SerializeToString())
    return found


@pytest.mark.native
@pytest.mark.parametrize("shapes", [None, {"rows": (1, ROWS)}])
@pytest.mark.parametrize("capacity", [None, 0])
def test_room_for_packing_is_counted_and_not_expected_in_memory(path, capacity, shapes):
    arguments = [str(path), json.dumps(capacity), json.dumps(shapes)]
    done = subprocess.run([sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    peak, untouched, resident, high, measured, again, untouched_again = json.loads(done.stdout)
    assert peak == measured == again
    assert 0.95 * resident <= high <= resident
    if capacity is None:
        assert 6 * MIB <= untouched <= 8 * MIB
    else:
        assert untouched == 0
    assert untouched_again == 0  # there is an arena, whose pages others may have written


def test_an_allocator_of_the_users_may_have_written_all(path):
    allocator = gp.memory.HostResource()
    with gp.Engine(threads=1, allocator=allocator) as engine, gp.onnx.load(path, engine=engine) as model:
        assert model.predict_peak({"x": (ROWS, DEPTH)}).untouched_nbytes == 0
    with gp.onnx.load(path, threads=1) as model:
        assert model.predict_peak({"x": (ROWS, DEPTH)}).untouched_nbytes >= 6 * MIB
