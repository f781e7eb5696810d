"""What the process's memory is: planted blocks, files and threads are found, parts sum up to the resident size."""

import gc
import json
import mmap
import pickle
import re
import threading
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import graphpool as gp
from graphpool import cli
from graphpool.cache import constant_tensor_cache
from graphpool.memory import HostResource
from graphpool.runtime import process_report as module
from graphpool.runtime.memory_peak import MemoryPeak
from tests.helpers.memory import callback_resource
from tests.helpers.onnx_models import make_model, random_array

MIB = 2**20
STATUS = Path("/proc/self/status")

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs /proc/self/smaps, as Linux has it")


def resident_nbytes():
    return int(re.search(r"VmRSS:\s+(\d+)", STATUS.read_text())[1]) * 1024


def test_parts_sum_up_to_the_resident_size():
    with gp.Engine(threads=1) as engine:
        tensor = gp.Tensor(gp.LogicalTensor(0, "u8", (32 * MIB,)), engine)
        tensor.fill(np.ones(32 * MIB, np.uint8))
        report = engine.process_report()
        assert sum(report.parts.values()) == report.resident_nbytes
        assert report.resident_nbytes == pytest.approx(resident_nbytes(), rel=0.02)
        assert report.parts["budget"] == pytest.approx(32 * MIB, rel=0.01)
        assert report.parts["libraries"] > MIB
        assert report.page_tables_nbytes > 0
        assert report.is_budget_exact
        assert report.fixed_nbytes == sum(report.parts.values()) - report.parts["budget"] - report.parts["mapped files"]


def test_memory_that_nobody_wrote_is_counted_and_not_resident():
    with gp.Engine(threads=1) as engine:
        before = engine.process_report().parts["budget"]
        tensor = gp.Tensor(gp.LogicalTensor(0, "u8", (64 * MIB,)), engine)
        tensor.numpy()[: 8 * MIB] = 1
        report = engine.process_report()
        assert report.holdings["tensors"] == 64 * MIB
        assert report.parts["budget"] - before == pytest.approx(8 * MIB, abs=2 * MIB)  # a huge page more at most


def test_pages_of_mapped_files_are_told_apart(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(bytes(16 * MIB))
    with gp.Engine(threads=1) as engine, path.open("rb") as file:
        before = engine.process_report()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            mapped.madvise(mmap.MADV_RANDOM)
            assert sum(mapped[: 4 * MIB : mmap.PAGESIZE]) == 0
            report = engine.process_report()
        assert report.mapped_nbytes - before.mapped_nbytes == 16 * MIB
        grown = report.parts["mapped files"] - before.parts["mapped files"]
        assert 4 * MIB <= grown < 6 * MIB  # pages around a fault come with it


def test_stacks_of_threads_are_told_apart():
    ready, done = threading.Barrier(9), threading.Event()

    def wait():
        ready.wait()
        done.wait()

    with gp.Engine(threads=1) as engine:
        before = engine.process_report().parts["stacks"]
        threads = [threading.Thread(target=wait) for _ in range(8)]
        for thread in threads:
            thread.start()
        ready.wait()
        after = engine.process_report().parts["stacks"]
        done.set()
        for thread in threads:
            thread.join()
    assert after - before >= 8 * mmap.PAGESIZE


def test_where_the_heap_does_not_tell_its_slack_that_is_said(monkeypatch):
    monkeypatch.setattr(module, "_heap_in_use", lambda: None)
    with gp.Engine(threads=1) as engine:
        report = engine.process_report()
    assert (report.is_slack_known, report.parts["heap slack"]) == (False, 0)
    assert "unknown" in str(report)


def test_memory_of_an_allocator_of_yours_is_taken_to_be_resident():
    with gp.Engine(threads=1, allocator=callback_resource(HostResource())) as engine:
        tensor = gp.Tensor(gp.LogicalTensor(0, "u8", (8 * MIB,)), engine)
        report = engine.process_report()
        assert not report.is_budget_exact
        assert report.parts["budget"] == 8 * MIB == tensor.nbytes


def test_a_system_that_does_not_tell_is_unsupported(tmp_path):
    with pytest.raises(gp.UnsupportedError, match="Linux"):
        module.report_process({}, [], is_budget_exact=True, proc=tmp_path)


SMAPS = """\
00400000-00500000 r-xp 00000000 08:01 1 /usr/bin/python3
Rss:                1000 kB
Anonymous:             0 kB
00500000-00600000 rw-p 00000000 08:01 1 /usr/bin/python3
Rss:                 100 kB
Anonymous:           100 kB
00600000-00700000 rw-p 00000000 00:00 0
Rss:                  50 kB
VmFlags: rd wr mr mw me ac
00a00000-00b00000 rw-p 00000000 00:00 0                                  [heap]
Rss:                 500 kB
10000000-11000000 r--p 00000000 08:01 2                                  /data/model of mine.onnx
Rss:                4000 kB
Anonymous:             0 kB
18000000-18100000 r--s 00000000 00:01 3                                  /memfd:graphpool-1f (deleted)
Rss:                 700 kB
Anonymous:             0 kB
20000000-20001000 ---p 00000000 00:00 0
Rss:                   0 kB
20001000-20801000 rw-p 00000000 00:00 0
Rss:                  16 kB
24000000-24100000 rw-p 00000000 00:00 0
Rss:                 200 kB
24100000-28000000 ---p 00000000 00:00 0
Rss:                   0 kB
30000000-31000000 rw-p 00000000 00:00 0
Rss:                3000 kB
7ffe0000-7fff0000 rw-p 00000000 00:00 0                                  [stack]
Rss:                  40 kB
ffff0000-ffff1000 r-xp 00000000 00:00 0                                  [vdso]
Rss:                   4 kB
"""


def test_mappings_are_told_apart(tmp_path, monkeypatch):
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "smaps").write_text(SMAPS)
    (tmp_path / "self" / "status").write_text("VmRSS:\t 9610 kB\nVmPTE:\t 48 kB\n")
    monkeypatch.setattr(module, "_heap_in_use", lambda: 600 * 1024)
    report = module.report_process({"tensors": 2000 * 1024}, [], is_budget_exact=True, proc=tmp_path)
    assert {name: nbytes // 1024 for name, nbytes in report.parts.items()} == {
        "budget": 2000, "mapped files": 4000, "shared memory": 700, "libraries": 1154, "stacks": 56, "heap slack": 100,
        "interpreter and caller": 1600,
    }  # fmt: skip
    assert (report.resident_nbytes, report.mapped_nbytes, report.page_tables_nbytes) == (
        9610 * 1024,
        16 * MIB,
        48 * 1024,
    )
    assert json.loads(json.dumps(report.to_dict()))["fixed_nbytes"] == 3610 * 1024
    assert report.shared_nbytes == MIB
    text = str(report).splitlines()
    assert text[0].split() == ["budget", "1.95", "MiB", "of", "1.95", "MiB", "counted:", "tensors", "1.95", "MiB"]
    assert text[-1].split() == ["page", "tables", "0.05", "MiB", "not", "in", "it"]


# ---- predictions


def test_shared_weights_are_foretold_and_stand_apart(tmp_path):
    """Before anything of them is resident in a process that opens the model."""
    weights, x = random_array((1024, 2048)), random_array((4, 1024))
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    given = make_model([node], {"x": x}, ["y"], {"w": weights}).SerializeToString()
    with gp.onnx.load(given, threads=1) as model:
        handle = gp.share(model)
    cache = constant_tensor_cache("cpu")
    cache.clear()
    with handle.open() as model:
        foretold = model.predict_peak({"x": x}).fixed_nbytes  # which gives back what is free in the heap
        before = model.engine.process_report()
        model.run({"x": x})
        report = model.engine.process_report()
    del model, handle
    cache.clear()
    gc.collect()  # else later tests find the memory mapped
    assert report.shared_nbytes >= weights.nbytes
    assert report.parts["shared memory"] >= weights.nbytes > report.holdings["constants"]
    assert report.parts["shared memory"] <= report.shared_nbytes
    assert report.fixed_nbytes <= foretold
    assert before.shared_nbytes == report.shared_nbytes
    assert foretold >= before.fixed_nbytes + report.parts["shared memory"] - before.parts["shared memory"]


@pytest.fixture
def product(tmp_path):
    weights, x = random_array((512, 1024)), random_array((4, 512))
    path = tmp_path / "product.onnx"
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    path.write_bytes(make_model([node], {"x": x}, ["y"], {"w": weights}).SerializeToString())
    return path, x, weights


def test_a_prediction_tells_what_the_process_takes(product):
    path, x, weights = product
    with gp.Engine(threads=1) as engine, gp.onnx.load(path, engine=engine) as model:
        peak = model.predict_peak({"x": x})
        assert isinstance(peak, MemoryPeak)
        assert peak.mapped_nbytes == (0 if model.stats().cached_nbytes else weights.nbytes)
        told = peak.fixed_nbytes
        assert told == pytest.approx(engine.process_report().fixed_nbytes, rel=0.05)
        assert peak.resident_nbytes == peak + peak.mapped_nbytes + peak.fixed_nbytes - peak.untouched_nbytes
        assert pickle.loads(pickle.dumps(peak)) == peak
        assert pickle.loads(pickle.dumps(peak)).mapped_nbytes == peak.mapped_nbytes
        model.run({"x": x})
        assert peak == engine.budget.peak
        lost = MemoryPeak(int(peak))
    with pytest.raises(gp.StateError, match="engine"):
        lost.fixed_nbytes  # noqa: B018 - it raises


def test_of_equal_weights_that_are_packed_runs_read_none_in_the_file(tmp_path):
    weights, x = random_array((256, 256)), random_array((1, 256))
    nodes = [helper.make_node("MatMul", ["x", "w0"], ["h"]), helper.make_node("MatMul", ["h", "w1"], ["y"])]
    path = tmp_path / "model.onnx"
    path.write_bytes(make_model(nodes, {"x": x}, ["y"], {"w0": weights, "w1": weights}).SerializeToString())
    with gp.onnx.load(path, threads=1) as model:
        peak = model.predict_peak({"x": x})
        assert model.stats().cached_nbytes == weights.nbytes
        assert peak.mapped_nbytes == 0


def test_weights_that_no_room_is_left_to_pack_are_read_from_the_file(product):
    path, x, weights = product
    with gp.Engine(threads=1, memory_limit="1MiB") as engine, gp.onnx.load(path, engine=engine) as model:
        peak = model.predict_peak({"x": x})
        assert model.stats().cached_nbytes == 0
        assert weights.nbytes <= peak.mapped_nbytes <= weights.nbytes + 2 * mmap.PAGESIZE


def pages_of(path):
    """What the process has in memory of a mapped file. Unit: bytes."""
    found = re.findall(rf"{re.escape(str(path))}\n(?:[A-Z].*\n)*?Rss:\s+(\d+)", Path("/proc/self/smaps").read_text())
    assert found
    return 1024 * sum(map(int, found))


def test_small_constants_among_packed_weights_bring_in_their_own_pages_only(tmp_path):
    """Whatever the system's cache has around them."""
    x, names = random_array((4, 640)), range(4)
    weights = {f"w{k}": random_array((640, 640), seed=k) for k in names}
    weights |= {f"b{k}": random_array((640,), seed=k) for k in names}
    nodes = [helper.make_node("MatMul", [f"h{k}" if k else "x", f"w{k}"], [f"m{k}"]) for k in names]
    nodes += [helper.make_node("Add", [f"m{k}", f"b{k}"], [f"h{k + 1}"]) for k in names]
    nodes = [node for pair in zip(nodes[:4], nodes[4:], strict=True) for node in pair]
    path = tmp_path / "layers.onnx"
    path.write_bytes(make_model(nodes, {"x": x}, ["h4"], weights).SerializeToString())
    assert len(path.read_bytes()) > 4 * weights["w0"].nbytes
    with gp.onnx.load(path, threads=1) as model:
        peak = model.predict_peak({"x": x})
        assert model.stats().cached_nbytes >= 4 * weights["w0"].nbytes
        assert 4 * weights["b0"].nbytes <= peak.mapped_nbytes <= 8 * mmap.PAGESIZE
        before = pages_of(path)
        assert before < weights["w0"].nbytes
        model.run({"x": x})
        assert pages_of(path) == before  # they were there
        assert before - 4 * mmap.PAGESIZE <= peak.mapped_nbytes


def test_lookups_take_what_so_many_rows_bring_in_at_most(tmp_path):
    table, ids = random_array((16384, 256)), np.array([9_000], np.int64)
    path = tmp_path / "table.onnx"
    node = helper.make_node("Gather", ["table", "ids"], ["y"])
    path.write_bytes(make_model([node], {"ids": ids}, ["y"], {"table": table}).SerializeToString())
    with gp.onnx.load(path, threads=1) as model:
        peak, before = model.predict_peak({"ids": ids}), pages_of(path)
        assert table[0].nbytes <= peak.mapped_nbytes <= table.nbytes // 2
        np.testing.assert_array_equal(model.run({"ids": ids})["y"], table[ids])
        assert 0 < pages_of(path) - before <= peak.mapped_nbytes


def test_a_table_that_a_product_reads_packed_counts_by_its_lookups(tmp_path):
    table, x, ids = random_array((256, 16384)), random_array((4, 256)), np.array([200], np.int64)
    path = tmp_path / "tied.onnx"
    nodes = [helper.make_node("Gather", ["table", "ids"], ["row"]), helper.make_node("MatMul", ["x", "table"], ["y"])]
    inputs = {"x": x, "ids": ids}
    path.write_bytes(make_model(nodes, inputs, ["row", "y"], {"table": table}).SerializeToString())
    with gp.onnx.load(path, threads=1) as model:
        peak, before = model.predict_peak(inputs), pages_of(path)
        assert model.stats().cached_nbytes >= table.nbytes
        assert peak.lookup_nbytes == peak.mapped_nbytes <= table.nbytes // 2
        np.testing.assert_array_equal(model.run(inputs)["row"], table[ids])
        assert pages_of(path) - before <= peak.mapped_nbytes
    with gp.onnx.load(path, threads=1, memory_limit="4MiB") as model:
        assert model.predict_peak(inputs).mapped_nbytes >= table.nbytes
        assert model.stats().cached_nbytes == 0


def test_ranges_have_both_numbers_too(product):
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    weights, x = random_array((64, 32)), random_array((4, 64))
    model = make_model([node], {"x": x}, ["y"], {"w": weights}, shapes={"x": ["n", 64]}).SerializeToString()
    with gp.onnx.load(model, shapes={"n": (1, 9)}) as loaded:
        peak = loaded.predict_peak()
        assert peak.sizes == {"n": 9}
        assert peak.resident_nbytes == peak + peak.mapped_nbytes + peak.fixed_nbytes - peak.untouched_nbytes
        other = pickle.loads(pickle.dumps(peak))
        assert (other, other.sizes, other.is_exact) == (peak, peak.sizes, peak.is_exact)


def test_the_command_tells_both(product, capsys):
    path = str(product[0])
    assert cli.main(["predict", path, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    numbers = [report[f"{name}_nbytes"] for name in ("peak", "mapped", "fixed", "resident")]
    assert numbers[3] == sum(numbers[:3]) - report["untouched_nbytes"]
    assert cli.main(["process", path, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert sum(report["parts"].values()) == report["resident_nbytes"]
    assert report["counted"]["tensors_nbytes"] == 4 * 1024 * 4
    assert cli.main(["process", path]) == 0
    assert "mapped_files:" in capsys.readouterr().out


def test_a_weight_that_two_ops_read_packed_alike_is_not_read_from_the_file(tmp_path):
    weights, x = random_array((512, 512)), random_array((4, 512))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "w"], ["y"])]
    path = tmp_path / "twice.onnx"
    path.write_bytes(make_model(nodes, {"x": x}, ["y"], {"w": weights}).SerializeToString())
    with gp.onnx.load(path, threads=1) as model:
        assert model.stats().cached_nbytes >= weights.nbytes
        assert model.predict_peak({"x": x}).mapped_nbytes == 0
