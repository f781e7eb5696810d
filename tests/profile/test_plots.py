"""Figures: every axis says what it shows and in which unit, and no two texts meet."""

from __future__ import annotations

import sys
from itertools import combinations
from typing import Any

import pytest

import graphpool as gp
from graphpool.cache import Item
from graphpool.cache.traces import compare_policies
from graphpool.memory import BufferInfo, plan
from graphpool.profile import Footprint, footprint, trace
from graphpool.schedule import DependencyGraph, list_schedule

FORMULA = r"a $\frac{x}$ \$name"
BUFFERS = [BufferInfo(f"b{k}", k, k + 3, 1000 * (1 + k % 3), gaps=((k + 1, k + 2),)) for k in range(40)]


def texts_of(figure: Any) -> list[Any]:
    from matplotlib.text import Text

    figure.draw_without_rendering()
    hidden = {
        id(tick.label1)
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in axis.get_major_ticks()
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
    }
    found = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    return [text for text in found if id(text) not in hidden]


def check(figure: Any) -> set[str]:
    """See what no figure may lack; returns its texts."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()
    texts = texts_of(figure)
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    assert [(a, b) for (a, p), (b, q) in combinations(boxes, 2) if p.overlaps(q)] == []
    width, height = figure.canvas.get_width_height()
    assert all(p.x0 >= -1 and p.y0 >= -1 and p.x1 <= width + 1 and p.y1 <= height + 1 for _, p in boxes)
    for axes in figure.axes:
        assert axes.get_xlabel().endswith(")")
        assert axes.get_ylabel().endswith(")") or axes.get_yticklabels()[0].get_text().startswith("stream")
    return {text.get_text().replace(r"\$", "$") for text in texts}


@pytest.fixture
def traced(model: gp.Model, inputs: dict[str, Any]) -> gp.profile.Trace:
    with trace() as recorded:
        model.run(inputs)
    recorded.name_ops(model.specialise(inputs))
    return recorded


pytest.importorskip("matplotlib")


def test_a_trace_and_its_footprint(traced: gp.profile.Trace) -> None:
    assert {"stream 0", "stream 1", "SoftMax"} <= check(traced.plot())
    assert "a run" in check(traced.footprint().plot("a run"))


def test_a_footprint_of_nothing() -> None:
    check(Footprint((), (), 0).plot())


def test_a_picture(model: gp.Model, inputs: dict[str, Any]) -> None:
    picture = footprint(model, inputs)
    figure = picture.plot()
    assert {"SoftMax", "Concat"} <= check(figure)
    assert len(figure.axes[0].collections[0].get_paths()) == len(picture.temporaries)


def test_a_plan() -> None:
    made = plan(BUFFERS)
    figure = made.plot(BUFFERS)
    assert "time (unit of the lifetimes)" in check(figure)
    assert len(figure.axes[0].collections[0].get_paths()) == 2 * len(BUFFERS)  # the bytes are free in the gap of each
    with pytest.raises(gp.InvalidArgumentError, match="no such buffer; accepted: what was planned; got: 'other'"):
        made.plot([BufferInfo("other", 0, 1, 1)])
    check(plan([]).plot([]))


def test_a_plan_of_thousands_of_buffers() -> None:
    many = [BufferInfo(k, k, k + 5, 1000) for k in range(5000)]
    check(plan(many).plot(many))


@pytest.mark.parametrize("name", ["conv", FORMULA, "x" * 500, "two\nlines"])
def test_names_are_text(name: str) -> None:
    graph = DependencyGraph([(0, 1)], [1, 5], names=[name, name])
    shown = check(list_schedule(graph).plot())
    assert any(text[:3].strip() == name[:3].strip() for text in shown)


def test_kinds_have_a_colour_each() -> None:
    names = ["0 MatMul", "1 Add", "2 MatMul", "3 Add"]
    figure = list_schedule(DependencyGraph([(0, 1), (1, 2), (2, 3)], names=names)).plot()
    colours = [tuple(colour) for colour in figure.axes[0].collections[0].get_facecolors()]
    assert colours[0] == colours[2] != colours[1] == colours[3]
    assert {"MatMul", "Add"} <= check(figure)


def test_more_kinds_than_a_key_has_room_for() -> None:
    graph = DependencyGraph([], num_nodes=40, names=[f"kind{k}" for k in range(40)])
    assert "and 28 more" in check(list_schedule(graph, streams=2).plot())


def test_comparisons() -> None:
    items = [Item(key, 2**20, 1.0) for key in "abcd"] * 20
    check(compare_policies(items, [2**20, 2**21, 2**22]).plot())


def test_what_is_missing_is_named(traced: gp.profile.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for plot in (traced.plot, traced.footprint().plot, lambda: plan([]).plot([]), compare_policies([], []).plot):
        with pytest.raises(gp.UnsupportedError, match=r"graphpool\[profile\]") as caught:
            plot()
        assert caught.value.extra == "profile"
