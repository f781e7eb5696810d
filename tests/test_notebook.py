"""What notebooks show: short tables of text, made without a run, a network or a lock that somebody holds for long."""

from __future__ import annotations

import re
import threading
from html.parser import HTMLParser

import numpy as np
import pytest

import graphpool as gp
from graphpool import demo
from graphpool.memory import BufferInfo, plan

pytest.importorskip("onnx")
from tests.cases.two_programs import INPUTS, SCRIPT, two_programs


class Table(HTMLParser):
    """The texts of a page, and its tags."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert all(name == "style" for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(shown: object) -> dict[str, str]:
    """The rows of a table, its title under the empty name."""
    table = Table()
    table.feed(shown._repr_html_())  # type: ignore[attr-defined]
    assert set(table.tags) == {"table", "caption", "b", "tbody", "tr", "th", "td"}
    assert len(table.texts) < 40
    assert all(len(text) <= 200 for text in table.texts)
    title, *rows = table.texts
    return {"": title} | dict(zip(rows[::2], rows[1::2], strict=True))


def test_a_model_its_engine_and_its_partitions() -> None:
    with gp.Engine(threads=2, memory_limit="64MiB") as engine, gp.onnx.load(two_programs(), engine=engine) as model:
        assert read(model)["runs"] == "0"
        model.run(INPUTS)
        rows = read(model)
        assert rows[""] == f"Model model {SCRIPT}"
        assert (rows["inputs"], rows["runs"], rows["specialised forms"]) == ("x: f32 [64, 256]", "1", "1")
        assert re.fullmatch(r"[\d.]+ KiB", rows["arenas"])
        held = read(engine)
        assert (held["memory limit"], held["models"]) == ("64 MiB", f"model {SCRIPT}")
        assert held["in use by constants"].endswith(" KiB")
        assert [read(partition)["backend"] for partition in model.partitions].count("cpu") == 3
        compiled = next(found for found in model.specialise().compiled if found.program is not None)
        assert read(compiled)["kernels"].startswith("f32_matmul")
        assert model.stats().runs == 1
    assert read(model)[""].endswith(", closed")
    assert read(engine)[""] == "Engine cpu:0, closed"


def test_plans_and_caches(tmp_path: object) -> None:
    rows = read(plan([BufferInfo(k, k, k + 2, 1024) for k in range(20)]))
    assert (rows["buffers"], rows["arena"], rows["optimal"]) == ("20", "2 KiB", "proved")
    for cache in (
        gp.cache.primitive_cache(),
        gp.cache.compiled_partition_cache(),
        gp.cache.constant_tensor_cache("cpu"),
    ):
        assert read(cache)["hits"].count(" of ") == 1
        assert read(cache.stats())[""] == "CacheStats"
    assert read(gp.cache.PackedStore(str(tmp_path)))["entries"] == "0, no bound"


def test_a_dynamic_partition() -> None:
    graph = gp.Graph()
    x, w, y = (gp.LogicalTensor(n, "f32", shape) for n, shape in enumerate([(gp.UNKNOWN_DIM, 8), (8, 4), None]))
    graph.add_op(gp.Op(0, "MatMul", [x, w], [y]))
    graph.finalize()
    [partition] = graph.get_partitions()
    with gp.Engine(threads=1) as engine, partition.compile([x, w], [y], engine) as compiled:
        assert read(compiled)["shapes it is compiled for"] == "0"
        tensors = [gp.Tensor(lt.replace(shape=s), engine) for lt, s in ((x, (3, 8)), (w, (8, 4)))]
        for tensor in tensors:
            tensor.fill(np.ones(tensor.lt.shape, tensor.lt.dtype.numpy))
        compiled.execute(gp.Stream(engine), tensors)
        assert read(compiled)["shapes it is compiled for"] == "1"


def test_long_lists_are_cut() -> None:
    graph = gp.Graph()
    tensors = [gp.LogicalTensor(n, "f32", (4,)) for n in range(40)]
    for n in range(39):
        graph.add_op(gp.Op(n, "ReLU", [tensors[n]], [tensors[n + 1]], name=f"{SCRIPT}{n}"))
    graph.finalize()
    [partition] = graph.get_partitions()
    assert "<script>" not in partition._repr_html_()
    assert read(partition)["ops"].endswith(" ...")


def test_a_table_is_there_while_a_model_compiles() -> None:
    found: dict[str, str] = {}
    entered, leave = threading.Event(), threading.Event()
    images = {"image": demo.test_images()[0][:2]}
    with gp.onnx.load(demo.model_path("digits_cnn")) as model:
        specialise = model._forms.specialise

        def slow(*args: object) -> object:
            entered.set()
            leave.wait(60)
            return specialise(*args)

        model._forms.specialise = slow
        thread = threading.Thread(target=model.run, args=(images,))
        thread.start()
        assert entered.wait(60)
        reader = threading.Thread(target=lambda: found.update(read(model)))
        reader.start()
        reader.join(20)
        is_stuck = reader.is_alive()
        leave.set()
        thread.join(60)
        reader.join(60)
    assert not is_stuck
    assert found["runs"] == "0"
