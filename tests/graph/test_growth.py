"""How a match grows: what is absorbed in front of an op, and what a cluster takes."""

from graphpool.graph.growth import Growth
from graphpool.graph.logical_tensor import LogicalTensor
from graphpool.graph.op import Op
from graphpool.graph.pattern import ANY_PORT, Cluster, OpNode, Upstream
from graphpool.graph.view import GraphView

INSIDE = frozenset({"Add", "Multiply", "Exp", "Sigmoid"})
CLUSTER = Cluster(INSIDE, OpNode("MatMul", inputs={ANY_PORT: OpNode("Dequantize")}), feeding=(1, 1), fed=(1, 1))


def chain(*specs):
    """A view from (kind, input ids); op i writes tensor 100 + i, and small ids come from outside."""
    return GraphView([
        Op(i, kind, [LogicalTensor(s, "f32", None) for s in sources], [LogicalTensor(100 + i, "f32", None)])
        for i, (kind, sources) in enumerate(specs)
    ])  # fmt: skip


def cluster(view, anchor, wanted=CLUSTER):
    """Op ids of the cluster around op `anchor`, and of the border ops that it feeds."""
    numbers = {op.id: number for number, op in enumerate(view.ops)}
    taken, fed = Growth(view, [True] * len(view.ops)).cluster(wanted, numbers[anchor])
    return sorted(view.ops[n].id for n in taken), [view.ops[n].id for n in fed]


def test_cluster_lies_between_products():
    view = chain(("MatMul", [0, 1]), ("Multiply", [100, 2]), ("Exp", [101]), ("Add", [102, 3]), ("MatMul", [103, 4]))
    assert cluster(view, 2) == ([0, 1, 2, 3, 4], [4])


def test_cluster_looks_at_nothing_behind_a_product():
    view = chain(("Exp", [0]), ("MatMul", [100, 1]), ("Exp", [101]), ("MatMul", [102, 2]), ("Add", [103, 3]))
    assert cluster(view, 2) == ([1, 2, 3], [3])


def test_cluster_takes_a_product_with_what_it_absorbs():
    view = chain(("Dequantize", [0]), ("MatMul", [1, 100]), ("Exp", [101]), ("MatMul", [102, 2]))
    assert cluster(view, 2) == ([0, 1, 2, 3], [3])


def test_producer_that_is_read_elsewhere_stays_outside():
    view = chain(("Sigmoid", [5]), ("MatMul", [0, 1]), ("Add", [101, 100]), ("MatMul", [102, 2]), ("MatMul", [100, 3]))
    assert cluster(view, 2) == ([1, 2, 3], [3])


def test_too_many_products_are_no_cluster():
    view = chain(("MatMul", [0, 1]), ("MatMul", [2, 3]), ("Add", [100, 101]), ("MatMul", [102, 4]))
    assert cluster(view, 2) == ([], [])


def test_shared_port_must_read_one_tensor():
    wanted = Cluster(INSIDE, OpNode("MatMul"), feeding=(2, 2), fed=(1, 1), shared_port=0)
    gate = ("Multiply", [100, 101]), ("MatMul", [102, 4])
    assert cluster(chain(("MatMul", [0, 1]), ("MatMul", [0, 3]), *gate), 2, wanted) == ([0, 1, 2, 3], [3])
    assert cluster(chain(("MatMul", [0, 1]), ("MatMul", [2, 3]), *gate), 2, wanted) == ([], [])


def absorbed(view, node):
    """Op ids in front of the last op."""
    last = len(view.ops) - 1
    return sorted(view.ops[n].id for n in Growth(view, [True] * len(view.ops)).inputs(node, last))


def test_producers_at_any_port():
    view = chain(("Dequantize", [0]), ("Dequantize", [1]), ("Concat", [100, 101]))
    assert absorbed(view, OpNode("Concat", inputs={ANY_PORT: OpNode("Dequantize")})) == [0, 1]
    assert absorbed(view, OpNode("Concat", inputs={1: OpNode("Dequantize")})) == [1]


def test_producer_with_two_readers_is_not_absorbed():
    view = chain(("Dequantize", [0]), ("Exp", [100]), ("MatMul", [100, 101]))
    assert absorbed(view, OpNode("MatMul", inputs={0: OpNode("Dequantize")})) == []


def test_upstream_goes_back_to_the_inputs_of_the_graph():
    node = OpNode("MatMul", inputs={0: Upstream(INSIDE)})
    diamond = chain(("Add", [0, 1]), ("Exp", [100]), ("Multiply", [100, 101]), ("MatMul", [102, 2]))
    assert absorbed(diamond, node) == [0, 1, 2]
    assert absorbed(chain(("Concat", [0, 1]), ("Exp", [100]), ("MatMul", [101, 2])), node) == []


def test_first_alternative_that_fits_is_taken():
    node = OpNode("MatMul", inputs={0: (Upstream(INSIDE), OpNode("Add"))})
    assert absorbed(chain(("Concat", [0]), ("Add", [100, 1]), ("MatMul", [101, 2])), node) == [1]
