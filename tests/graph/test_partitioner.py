"""The partitioner on random graphs and random patterns: partitions cover, order and never form a cycle."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpool.graph.growth import Growth
from graphpool.graph.logical_tensor import LogicalTensor
from graphpool.graph.op import Op
from graphpool.graph.partitioner import Quotient, cover
from graphpool.graph.pattern import ANY_PORT, Cluster, OpNode, Pattern, PostOps, Upstream, optional
from graphpool.graph.view import GraphView

BEFORE = (OpNode("Dequantize"), Upstream(frozenset({"Add", "Exp"})))
KINDS = ("MatMul", "Add", "ReLU", "Exp", "Dequantize")


@dataclass
class FakeBackend:
    """Claims ops by id parity, so that a graph falls to two backends."""

    name: str
    patterns: list[Pattern]
    parity: int | None = None
    engine_kind: str = "cpu"
    priority: int = 0
    seen: list[int] = field(default_factory=list)

    def supports(self, op):
        self.seen.append(op.id)
        return self.parity is None or op.id % 3 != self.parity


@st.composite
def views(draw):
    """A random graph: every op reads one to three earlier tensors."""
    ops = []
    count = draw(st.integers(1, 24))
    for i in range(count):
        sources = draw(st.lists(st.integers(0, i), min_size=1, max_size=3))
        tensors = [LogicalTensor(s, "f32", None) for s in sources]
        ops.append(Op(i, draw(st.sampled_from(KINDS)), tensors, [LogicalTensor(i + 1, "f32", None)]))
    order = draw(st.permutations(range(count)))
    return GraphView([ops[i] for i in order])


@st.composite
def patterns(draw):
    """A few random patterns over the same kinds."""
    made = []
    for k in range(draw(st.integers(1, 4))):
        tail = []
        for _ in range(draw(st.integers(0, 3))):
            kinds = draw(st.sets(st.sampled_from(KINDS), min_size=1))
            node = OpNode(kinds, inputs={1: OpNode("Dequantize")} if draw(st.booleans()) else {})
            tail.append(draw(st.sampled_from([PostOps(frozenset(kinds), sides=BEFORE[0]), node, optional(node)])))
        anchor = OpNode(draw(st.sets(st.sampled_from(KINDS), min_size=1)), inputs={0: draw(st.sampled_from(BEFORE))})
        cluster = None
        if draw(st.booleans()):
            inner = frozenset(draw(st.sets(st.sampled_from(KINDS), min_size=1)))
            least = draw(st.integers(0, 2))
            cluster = Cluster(
                inner,
                OpNode("MatMul", inputs={ANY_PORT: BEFORE[0]}),
                (least, 3),
                (0, 2),
                draw(st.sampled_from([None, 0])),
            )
        made.append(Pattern(f"p{k}", float(k), f"k{k}", anchor, tuple(tail), cluster))
    return made


def quotient_is_acyclic(view, groups):
    """An independent check: repeatedly remove groups that read nothing of another remaining group."""
    group_of = {number: k for k, numbers in enumerate(groups) for number in numbers}
    needs = {k: {group_of[p] for n in numbers for p in view.predecessors(n)} - {k} for k, numbers in enumerate(groups)}
    while ready := [k for k, sources in needs.items() if not sources]:
        for k in ready:
            del needs[k]
        for sources in needs.values():
            sources.difference_update(ready)
    return not needs


@settings(max_examples=300, deadline=None)
@given(views(), patterns(), st.sampled_from([None, 0]))
def test_cover_is_complete_ordered_and_acyclic(view, made, parity):
    backends = [FakeBackend("a", made, parity), FakeBackend("b", made[:1], 1)]
    covers = cover(view, backends, "fusion")
    groups = [list(c.numbers) for c in covers]
    assert sorted(n for numbers in groups for n in numbers) == list(range(len(view.ops)))
    assert quotient_is_acyclic(view, groups)
    done = set()
    for c in covers:
        outside = {p for n in c.numbers for p in view.predecessors(n)} - set(c.numbers)
        assert outside <= done
        done |= set(c.numbers)
        assert list(c.numbers) == sorted(c.numbers)
        assert len(c.numbers) == 1 or all(c.backend.supports(view.ops[n]) for n in c.numbers)


@settings(max_examples=300, deadline=None)
@given(views(), st.data())
def test_merge_refuses_exactly_what_would_close_a_cycle(view, data):
    quotient = Quotient(view)
    groups = {n: {n} for n in range(len(view.ops))}
    for _ in range(data.draw(st.integers(1, 8))):
        wanted = data.draw(st.lists(st.integers(0, len(view.ops) - 1), min_size=2, max_size=4))
        union = set().union(*(groups[n] for n in wanted))
        trial = [union] + [g for g in {frozenset(g) for g in groups.values()} if not g & union]
        assert quotient.merge(wanted) == quotient_is_acyclic(view, trial)
        if quotient_is_acyclic(view, trial):
            groups.update(dict.fromkeys(union, union))
        ordered = quotient.groups_in_order()
        assert {frozenset(g) for g in ordered} == {frozenset(g) for g in groups.values()}
        position = {n: k for k, numbers in enumerate(ordered) for n in numbers}
        for n in range(len(view.ops)):
            assert all(position[p] <= position[n] for p in view.predecessors(n))


def chain(*specs):
    """A view from (kind, input ids) with output ids counted from 1."""
    ops = [
        Op(i, kind, [LogicalTensor(s, "f32", None) for s in sources], [LogicalTensor(i + 1, "f32", None)])
        for i, (kind, sources) in enumerate(specs)
    ]
    return GraphView(ops)


ELTWISE = frozenset({"Add", "Multiply", "Sigmoid", "ReLU", "Exp"})


def region(view, value):
    found = Growth(view, [True] * len(view.ops)).region(value, set(), lambda op: op.kind in ELTWISE)
    return [view.ops[n].id for n in found]


def test_region_of_a_chain_is_one_op():
    assert region(chain(("ReLU", [0]), ("Exp", [1])), 0) == [0]


def test_region_closes_a_diamond():
    assert region(chain(("Sigmoid", [0]), ("Multiply", [0, 1]), ("ReLU", [2])), 0) == [0, 1]


def test_region_stops_where_a_branch_leaves():
    view = chain(("Sigmoid", [0]), ("Multiply", [0, 1]), ("MatMul", [0, 9]))
    assert region(view, 0) == []


def test_region_stops_at_a_second_output():
    """The Sigmoid's result leaves the graph, so two values would stay open."""
    assert region(chain(("Sigmoid", [0]), ("Exp", [0])), 0) == []


@pytest.mark.parametrize("port", [0, 1])
def test_ports_restrict_a_tail(port):
    view = chain(("MatMul", [0, 8]), ("MatMul", [1, 9] if port == 0 else [9, 1]))
    pattern = Pattern("p", 1.0, "k", OpNode("MatMul"), (OpNode("MatMul", ports=[0]),))
    covers = cover(view, [FakeBackend("a", [pattern])], "fusion")
    assert len(covers) == (1 if port == 0 else 2)


def test_debug_policy_is_one_op_each():
    view = chain(("ReLU", [0]), ("Exp", [1]))
    pattern = Pattern("p", 1.0, "k", OpNode(ELTWISE), (PostOps(ELTWISE),))
    backend = FakeBackend("a", [pattern])
    assert [len(c.numbers) for c in cover(view, [backend], "debug")] == [1, 1]
    assert [len(c.numbers) for c in cover(view, [backend], "fusion")] == [2]


def test_a_cycle_through_another_partition_is_refused():
    """A and B may not merge while C, outside, reads A and feeds B (oneDNN Graph's programming model)."""
    view = chain(("ReLU", [0]), ("MatMul", [1, 9]), ("Add", [1, 2]))
    pattern = Pattern("p", 1.0, "k", OpNode("Add", inputs={0: OpNode("ReLU")}))
    covers = cover(view, [FakeBackend("a", [pattern])], "fusion")
    assert [len(c.numbers) for c in covers] == [1, 1, 1]
    quotient = Quotient(view)
    assert not quotient.merge([0, 2])
