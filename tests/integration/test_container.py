"""A model of 240 MB serves eight threads at batches of 1 to 1,024 in 512 MB, without being killed or running dry."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import graphpool as gp

LIMIT_NBYTES = 512 * 10**6
ROWS, WIDTH, LAYERS = 64, 2048, 3
PRODUCTS_NBYTES = 4 * LAYERS * WIDTH**2
MODELS = {240: ("file", "bytes"), 150: ("proto",)}
"""Size in MB -> how it is given: a caller's ModelProto is there beside the copy that is made of it."""

SERVE = """
import os, random, re, resource, sys, threading
from pathlib import Path
import numpy as np

path, source, group, limit = *sys.argv[1:4], int(sys.argv[4])
import graphpool as gp
from graphpool.onnx.loader import importer
importer()

def status(field):
    return int(re.search(rf"{field}:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

if group:
    (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
else:  # address space instead of pages: what is mapped now, and the rest of the limit
    space = status("VmSize") + limit - status("VmRSS")
    resource.setrlimit(resource.RLIMIT_AS, (space, space))
threading.stack_size(512 * 1024)
wanted = np.load(path + ".npy")
engine = gp.Engine(threads=1, memory_limit="auto", on_pressure="wait", pressure_timeout_s=100)
given = path if source == "file" else Path(path).read_bytes()
if source == "proto":
    import onnx
    data, given = given, onnx.load_model_from_string(given)
    del data
model = gp.onnx.load(given, engine=engine)
del given
refused = []

def serve(seed):
    rng = random.Random(seed)
    batches = [1, 1024 if seed % 4 == 0 else rng.randrange(2, 300), rng.randrange(2, 64), 7]
    for batch in rng.sample(batches, 4):
        try:
            ids = np.arange(batch) % len(wanted)
            y = model.run({"ids": ids})["y"]
            for row in range(batch):  # one by one: what a comparison takes is not in the budget
                assert abs(y[row] - wanted[ids[row]]).max() < 1e-2
            del y
        except BaseException as error:
            refused.append(error)
            raise

threads = [threading.Thread(target=serve, args=(seed,)) for seed in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not refused, refused
assert engine.budget.peak <= engine.memory_limit
model.close()
engine.close()
print("high", status("VmHWM"))
"""


@pytest.fixture(scope="module", params=list(MODELS))
def served(request, tmp_path_factory):
    """Path of the model, and the ways to give it."""
    path = tmp_path_factory.mktemp("container") / "model.onnx"
    rows = (request.param * 10**6 - PRODUCTS_NBYTES) // (4 * WIDTH)
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((WIDTH, WIDTH), np.float32) / np.float32(WIDTH**0.5) for _ in range(LAYERS)]
    table = np.tile(rng.standard_normal((ROWS, WIDTH), np.float32), (-(-rows // ROWS), 1))[:rows]
    nodes = [helper.make_node("Gather", ["table", "ids"], ["h0"])]
    nodes += [
        helper.make_node("MatMul", [f"h{k}", f"w{k}"], [f"h{k + 1}" if k + 1 < LAYERS else "y"]) for k in range(LAYERS)
    ]
    tensors = [("table", table), *((f"w{k}", weight) for k, weight in enumerate(weights))]
    constants = [helper.make_tensor(name, TensorProto.FLOAT, a.shape, a.tobytes(), raw=True) for name, a in tensors]
    graph = helper.make_graph(
        nodes, "served", [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", WIDTH])],
        constants,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    path.write_bytes(model.SerializeToString())
    wanted = table[:ROWS]
    for weight in weights:
        wanted = wanted @ weight
    np.save(f"{path}.npy", wanted)
    yield path, MODELS[request.param]
    path.unlink()


def serve(path, source, group=""):
    environment = os.environ | {"MALLOC_ARENA_MAX": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", SERVE, str(path), source, str(group), str(LIMIT_NBYTES)],
        env=environment, cwd=Path(gp.__file__).parents[1], capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_a_model_serves_within_an_address_space(served):
    path, sources = served
    for source in sources:
        done = serve(path, source)
        assert done.returncode == 0, done.stderr[-3000:]
        assert int(done.stdout.split()[1]) <= LIMIT_NBYTES


@pytest.fixture
def group():
    """A control group of its own below the one that the variable names, which must be one to make groups in."""
    parent = os.environ.get("GRAPHPOOL_TEST_CGROUP")
    if parent is None:
        pytest.skip("GRAPHPOOL_TEST_CGROUP names no control group of memory in which others may be made")
    group = Path(parent) / f"graphpool-{os.getpid()}"
    group.mkdir()
    yield group
    group.rmdir()


def limit_group(group, nbytes):
    """Allow a control group so much memory, swap included where that is limited apart."""
    names = [name for name in ("memory.max", "memory.limit_in_bytes") if (group / name).exists()]
    (group / names[0]).write_text(str(nbytes))
    for name, value in (("memory.swap.max", 0), ("memory.memsw.limit_in_bytes", nbytes)):
        if (group / name).exists():
            (group / name).write_text(str(value))


def test_a_model_serves_within_a_control_group(served, group):
    path, sources = served
    for source in sources:
        limit_group(group, LIMIT_NBYTES)
        done = serve(path, source, group)
        assert done.returncode == 0, done.stderr[-3000:]


RUN = """
import os, re, sys
from pathlib import Path
import numpy as np

path, source, group = *sys.argv[1:3], Path(sys.argv[3])
if group.name:
    (group / "cgroup.procs").write_text(str(os.getpid()))
import graphpool as gp
import onnx
given = path if source == "file" else Path(path).read_bytes()
if source == "proto":
    given = onnx.load_model_from_string(given)
with gp.onnx.load(given, threads=1) as model:
    inputs = {"ids": np.arange(int(sys.argv[4]))}
    peak = model.predict_peak(inputs)
    print(peak.resident_nbytes, flush=True)
    if sys.argv[5] == "run":
        model.run(inputs)
        print("done")
"""


def test_a_control_group_kills_what_takes_more(group):
    limit_group(group, 64 * 10**6)
    take = "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid())); bytes(range(256)) * (1 << 20)"
    done = subprocess.run([sys.executable, "-c", take, str(group / "cgroup.procs")], timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("batch", [1, 1024, 4096])
@pytest.mark.parametrize("source", ["file", "bytes", "proto"])
def test_a_run_is_not_killed_in_a_little_more_than_was_predicted(served, group, source, batch):
    path, sources = served
    if source not in sources:
        pytest.skip("of the other size")

    def run(group, what):
        command = [sys.executable, "-c", RUN, str(path), source, str(group), str(batch), what]
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
        return subprocess.run(
            command, env=environment, cwd=Path(gp.__file__).parents[1], capture_output=True, text=True, timeout=300,
            check=False,
        )  # fmt: skip

    foretold = run("", "predict")
    assert foretold.returncode == 0, foretold.stderr[-3000:]
    predicted_nbytes = int(foretold.stdout)
    limit_group(group, int(predicted_nbytes * 1.02))
    done = run(group, "run")
    assert done.returncode == 0, (done.returncode, predicted_nbytes, done.stderr[-3000:])
    assert done.stdout.endswith("done\n")
