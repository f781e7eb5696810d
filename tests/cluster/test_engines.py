"""Real engines with two workers on this machine: results are whole, in order where asked, and what dies is replaced.

Skipped where an engine is not installed; CI installs them: ``pip install graphpool[ray,dask,spark]``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import graphpool as gp
from graphpool.demo import model_path, test_images

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
IMAGES, LABELS = test_images()
WITH = {
    name: pytest.mark.skipif(find_spec(module) is None, reason=f"needs {module}, which is not installed")
    for name, module in (("ray", "ray"), ("dask", "distributed"), ("spark", "pyspark"))
}
pytestmark = [pytest.mark.native, pytest.mark.filterwarnings("ignore")]  # those of the engines


def load() -> gp.Model:
    """The demonstration's model, for one thread and batches of up to eight."""
    return gp.onnx.load(model_path("digits_cnn"), threads=1, shapes={"batch": (1, 8)})


def processes(words: str) -> list[int]:
    """Processes of this machine whose command has these words."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            continue
        if words.encode() in command:
            found.append(int(folder.name))
    return found


def private_nbytes(pid: int) -> int:
    """What a process alone takes; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private"))


class Watch(threading.Thread):
    """Calls a function again and again until the end of the block."""

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__()
        self._look, self._is_over = look, threading.Event()

    def run(self) -> None:
        while not self._is_over.wait(0.01):
            self._look()

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_over.set()
        self.join()


@pytest.mark.parametrize("name", [pytest.param(name, marks=mark) for name, mark in WITH.items()])
def test_example(name: str, tmp_path: Path) -> None:
    if name == "spark" and shutil.which("java") is None:
        pytest.skip("Spark needs Java, which is not installed")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled", "HOME": str(tmp_path)}
    command = [sys.executable, str(ROOT / "examples" / f"on_{name}.py")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "361 of 364 right" in done.stdout


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A cluster of two processors."""
    ray = pytest.importorskip("ray", reason="needs ray, which is not installed")
    # Beside other work a proxy of Ray Serve takes longer to start than the five seconds that are its due.
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}
    os.environ |= {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120", "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "120"}
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}}
    )
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    yield ray
    ray.shutdown()


def test_ray_actors_stay_within_their_memory_and_are_replaced(ray: Any, tmp_path: Path) -> None:
    declared: list[float] = []
    used: list[int] = []
    killed: list[int] = []

    class Recorded:
        """A dataset that notes what its actors declare."""

        def map_batches(self, *args: Any, memory: float, **options: Any) -> Any:
            declared.append(memory)
            return rows.map_batches(*args, memory=memory, **options)

    def look() -> None:
        running = processes("ray::MapWorker(MapBatches(_Worker)).submit")
        used.extend(map(private_nbytes, running))
        if running and not killed:
            killed.append(running[0])
            os.kill(running[0], signal.SIGKILL)

    images = np.concatenate([IMAGES] * 16)
    rows = ray.data.from_items(
        [{"image": image, "place": place} for place, image in enumerate(images)], override_num_blocks=64
    )
    with load() as model:
        results = gp.ray.map_batches(Recorded(), model, workers=2, store=tmp_path / "store")
    with Watch(look):
        found = results.take_all()
    assert killed
    assert [row["place"] for row in found] == list(range(len(images)))
    assert sum(np.argmax(row["probabilities"]) == LABELS[row["place"] % len(IMAGES)] for row in found) == 16 * 361
    assert 20 * 2**20 < max(used) <= declared[0]


def test_ray_tells_the_row_that_does_not_fit(ray: Any, tmp_path: Path) -> None:
    rows = ray.data.from_items(
        [{"image": IMAGES[k] if k != 5 else IMAGES[k][:, :4], "place": 100 + k} for k in range(8)],
        override_num_blocks=1,
    )
    with load() as model:
        results = gp.ray.map_batches(rows, model, workers=1, store=tmp_path / "store")
    words = r"(?s)row 5 of column 'image'.*\[1, 8, 8\].*\[1, 4, 8\].*in that row: place = 105"
    with pytest.raises(Exception, match=words):
        results.take_all()


@WITH["ray"]
@pytest.mark.parametrize("workers", [0, True, (2, 1), (1, 2, 3), "2"])
def test_no_workers_of_ray_are_refused_before_it_is_asked_for_any(workers: Any) -> None:
    with load() as model, pytest.raises(gp.InvalidArgumentError, match=r"workers.*\(1, 4\).*got"):
        gp.ray.map_batches(None, model, workers=workers)  # type: ignore[arg-type]


def test_what_a_worker_of_ray_takes_is_measured_in_a_fresh_one(ray: Any) -> None:
    before = gp.ray._worker_nbytes()
    kept = ray.remote(lambda: globals().setdefault("kept", b"1" * (300 << 20))[:1])
    assert ray.get([kept.options(num_cpus=0.1).remote() for _ in range(8)]) == [b"1"] * 8
    assert gp.ray._worker_nbytes() < 1.2 * before


def test_ray_serve_answers_from_each_replica(ray: Any, tmp_path: Path) -> None:
    from ray import serve

    with load() as model:
        deployment = gp.ray.deployment(model, join="batch", store=tmp_path / "store", num_replicas=2)
        serve.run(deployment.bind())
    data = IMAGES[:2].ravel().tolist()
    request = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [2, 1, 8, 8], "data": data}]}
    address = "http://127.0.0.1:8000/v2/models/digits_cnn/infer"
    try:
        for _ in range(6):
            with urllib.request.urlopen(urllib.request.Request(address, json.dumps(request).encode())) as answer:
                found = np.reshape(json.load(answer)["outputs"][0]["data"], (2, 10))
            assert found.argmax(axis=1).tolist() == LABELS[:2].tolist()
    finally:
        serve.shutdown()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A client of two Dask workers."""
    distributed = pytest.importorskip("distributed", reason="needs distributed, which is not installed")
    import dask

    settings = {"dataframe.convert-string": False, "temporary-directory": str(tmp_path_factory.mktemp("dask"))}
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "resources": {"MEMORY": 2**30}}
    with (
        dask.config.set(settings),
        distributed.LocalCluster(**options) as workers,
        distributed.Client(workers) as client,
    ):
        yield client


def test_dask_replaces_a_worker_that_dies(cluster: Any, tmp_path: Path) -> None:
    import pandas
    from dask.dataframe import from_pandas

    images = np.concatenate([IMAGES] * 10)
    frame = from_pandas(pandas.DataFrame({"image": list(images), "place": range(len(images))}), npartitions=20)
    victim = next(iter(cluster.run(os.getpid).values()))
    with load() as model:
        results = gp.dask.map_partitions(frame, model, store=tmp_path / "store")
        assert results.columns.tolist() == ["place", "probabilities"]
        future = cluster.compute(results, resources=gp.dask.resources(model, nrows=200))
        time.sleep(0.5)  # wherever it is then, the result is the same
        os.kill(victim, signal.SIGKILL)
        found = future.result()
    assert found["place"].tolist() == list(range(len(images)))
    right = np.stack(list(found["probabilities"])).argmax(axis=1) == np.tile(LABELS, 10)
    assert right.sum() == 10 * 361


def test_dask_tells_the_row_that_does_not_fit(cluster: Any, tmp_path: Path) -> None:
    import pandas
    from dask.dataframe import from_pandas

    images = [image if k != 5 else image[:, :4] for k, image in enumerate(IMAGES[:8])]
    frame = from_pandas(pandas.DataFrame({"image": images}), npartitions=1)
    with load() as model:
        results = gp.dask.map_partitions(frame, model, store=tmp_path / "store")
        with pytest.raises(gp.InvalidShapeError, match=r"row 5 of column 'image'"):
            cluster.compute(results).result()


def test_spark_function_is_a_plain_iterator() -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas, which is not installed")
    with load() as model:
        predict = gp.spark.predictor(model)
        batches = [
            pandas.Series(list(IMAGES[k : k + 50]), index=range(k, k + len(IMAGES[k : k + 50])))
            for k in range(0, 364, 50)
        ]
        found = list(predict(iter(batches)))
        with pytest.raises(gp.InvalidArgumentError, match=r"output.*probabilities.*'logits'"):
            gp.spark.predictor(model, "logits")
    assert [series.index.tolist() for series in found] == [batch.index.tolist() for batch in batches]
    right = np.stack([row for series in found for row in series]).argmax(axis=1) == LABELS
    assert right.sum() == 361
