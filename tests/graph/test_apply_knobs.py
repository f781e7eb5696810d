"""What each knob changes of a graph."""

import copy
import json

import pytest

import graphpool as gp
from graphpool.errors import GraphpoolError
from graphpool.graph.dumps.apply_knobs import unknown_ids
from graphpool.graph.dumps.knobs import parse_knobs


@pytest.fixture
def case(tmp_path):
    """A file with a quantised product: dequantise -> MatMul -> ReLU."""
    graph = gp.Graph()
    q, x, w, y, z = (
        gp.LogicalTensor(number, dtype, shape, property="constant" if number == 2 else "undef")
        for number, (dtype, shape) in enumerate(
            [("s8", (4, 6)), ("f32", (4, 6)), ("f32", (6, 8)), ("f32", (4, 8)), ("f32", (4, 8))]
        )
    )
    graph.add_op(gp.Op(0, "Dequantize", [q], [x], scales=[0.3] * 6, zps=[1] * 6, qtype="per_channel", axis=1))
    graph.add_op(gp.Op(1, "MatMul", [x, w], [y]))
    graph.add_op(gp.Op(2, "ReLU", [y], [z]))
    graph.to_json(tmp_path / "case.json")
    return tmp_path / "case.json"


def build(path, knobs):
    """The graph of a file under knobs."""
    return gp.Graph.from_json(path, knobs=parse_knobs(knobs))


def op(graph, number):
    return next(op for op in graph.ops if op.id == number)


def test_scales_become_powers_of_two(case):
    assert op(build(case, {}), 0).attrs["scales"] == (0.5,) * 6


@pytest.mark.parametrize(("scale", "fitted"), [(1e308, 1e308), (2.0**1023, 2.0**1023), (1e-45, 2.0**-149), (0.0, 0.0)])
def test_scales_that_have_no_power_of_two_above_stay(case, scale, fitted):
    edited(case, lambda ops: ops[0]["attrs"]["scales"].update(value=[scale] * 6))
    assert op(build(case, {}), 0).attrs["scales"] == (fitted,) * 6


def test_shapes_are_inferred_anew_and_scales_fit(case):
    graph = build(case, {"in-shapes": "0:2x3+2:3x5"})
    assert graph.tensors[4].shape == (2, 5)
    assert op(graph, 0).attrs["scales"] == (0.5,) * 3
    assert op(graph, 0).attrs["zps"] == (1,) * 3


def test_strides_and_tags(case):
    graph = build(case, {"in-shapes": "0:4x6*7x1+2:*ba"})
    assert graph.tensors[0].strides == (7, 1)
    assert graph.tensors[2].strides == (1, 6)
    assert graph.tensors[4].strides == (8, 1)


def test_attributes(case):
    graph = build(case, {"op-attrs": "1:transpose_b:1*accumulation_mode:f32+0:zps:2x2x2x2x2x2", "in-shapes": "2:8x6"})
    assert op(graph, 1).attrs["transpose_b"] is True
    assert op(graph, 1).attrs["accumulation_mode"] == "f32"
    assert op(graph, 0).attrs["zps"] == (2,) * 6


def test_lists_of_integers_are_read_as_c_does(tmp_path):
    graph = gp.Graph()
    x, y = gp.LogicalTensor(0, "f32", (1, 2, 4, 4)), gp.LogicalTensor(1, "f32", None)
    graph.add_op(gp.Op(0, "Interpolate", [x], [y], mode="nearest", scales=[2.0, 2.0], data_format="NCX"))
    graph.to_json(tmp_path / "a.json")
    built = build(tmp_path / "a.json", {"op-attrs": "0:sizes:3.7x5"})
    assert built.tensors[1].shape == (1, 2, 3, 5)
    assert "scales" not in op(built, 0).attrs


def test_kinds(case):
    assert op(build(case, {"op-kind": "2:Exp"}), 2).kind == "Exp"
    deleted = build(case, {"op-kind": "2:undef"})
    assert [op.kind for op in deleted.ops] == ["Dequantize", "MatMul"]


def test_types_leave_what_an_op_does_not_take(tmp_path):
    graph = gp.Graph()
    tensors = [gp.LogicalTensor(k, "f32", shape) for k, shape in enumerate([(2, 8), (8,), (8,), (2, 8), (2,), (2,)])]
    graph.add_op(gp.Op(0, "LayerNorm", tensors[:3], tensors[3:], keep_stats=True))
    graph.to_json(tmp_path / "a.json")
    built = build(tmp_path / "a.json", {"dt": "bf16"})
    assert [built.tensors[k].dtype for k in range(6)] == ["bf16", "f32", "f32", "bf16", "f32", "f32"]
    assert build(tmp_path / "a.json", {"dtm": "0:f16+3:f16"}).tensors[3].dtype == "f16"


def test_batch_and_properties(case):
    graph = build(case, {"mb": "9", "tensor-property": "0:variable", "attr-fpmath": "bf16:true"})
    assert graph.tensors[0].shape == (9, 6)
    assert graph.tensors[0].property == "variable"
    assert (graph.fpmath, graph.fpmath_apply_to_int) == ("bf16", True)


def test_a_value_lasts_as_long_as_shape_and_property(tmp_path):
    graph, path = gp.Graph(), tmp_path / "case.json"
    x, y = (gp.LogicalTensor(number, "f32", (4, 6)) for number in (0, 2))
    graph.add_op(gp.Op(0, "Multiply", [x, gp.LogicalTensor(1, "f32", (1,), property="constant", value=0.5)], [y]))
    graph.to_json(path)
    assert build(path, {"in-shapes": "0:3x5"}).tensors[1].value == 0.5
    assert build(path, {"in-shapes": "1:6"}).tensors[1].value is None
    assert build(path, {"tensor-property": "1:variable"}).tensors[1].value is None


def test_batch_leaves_parameters_alone(tmp_path):
    graph = gp.Graph()
    shapes = [(4, 3, 5, 5), (4, 3, 1, 1), None, (4,), None, (4, 4, 5, 5), None, (1,), None]
    t = [gp.LogicalTensor(n, "f32", shape) for n, shape in enumerate(shapes)]
    own = {"strides": [1, 1], "pads_begin": [0, 0], "pads_end": [0, 0], "dilations": [1, 1], "data_format": "NCX"}
    graph.add_op(gp.Op(0, "Convolution", t[:2], [t[2]], weights_format="OIX", **own))
    graph.add_op(gp.Op(1, "BiasAdd", [t[2], t[3]], [t[4]], data_format="NCX"))
    graph.add_op(gp.Op(2, "Add", [t[4], t[5]], [t[6]]))
    graph.add_op(gp.Op(3, "Multiply", [t[6], t[7]], [t[8]]))
    graph.to_json(tmp_path / "a.json")
    built = build(tmp_path / "a.json", {"mb": "7"})
    assert [built.tensors[n].shape for n in (0, 1, 3, 5, 6, 7)] == [
        (7, 3, 5, 5), (4, 3, 1, 1), (4,), (7, 4, 5, 5), (7, 4, 5, 5), (1,),
    ]  # fmt: skip


def test_ids_that_are_not_there_are_passed_over_and_named(case):
    knobs = {"in-shapes": "77:2x3", "dt": "0:s8+78:f16", "tensor-property": "79:constant", "op-attrs": "5:a:1",
             "op-kind": "6:Exp"}  # fmt: skip
    graph = gp.Graph.from_json(case)
    assert len(build(case, knobs).ops) == 3
    assert unknown_ids(graph.ops, parse_knobs(knobs)) == ["tensor 77", "tensor 78", "tensor 79", "op 5", "op 6"]


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"in-shapes": "2:*bc"}, "layout of tensor 2"),
        ({"in-shapes": "2:6x8*1x2x3"}, "2 strides, or the letters ab"),
        ({"in-shapes": "0:5x7"}, "wrong dimension"),
        ({"in-shapes": "0:1x99999999999"}, "channels of op 0 .*; accepted: at most 1048576"),
        ({"op-attrs": "1:transpose:1"}, "did you mean"),
        ({"op-attrs": "1:transpose_b:maybe"}, "transpose_b of op 1"),
        ({"op-kind": "2:Add"}, "inputs of op 2"),
        ({"op-kind": "2:ReLu"}, "unknown op kind"),
        ({"tensor-property": "0:often"}, "property"),
        ({"dt": "bf15"}, "unknown data type"),
        ({"attr-fpmath": "f8"}, "fpmath"),
    ],
)
def test_what_does_not_fit_is_an_error(case, knobs, message):
    with pytest.raises(GraphpoolError, match=message):
        build(case, knobs)


# ---- files that are wrong until a knob mends them


def edited(case, edit):
    """The file after `edit` was called on its ops."""
    content = json.loads(case.read_text())
    edit(content["graph"])
    case.write_text(json.dumps(content))
    return case


@pytest.fixture
def pooled(tmp_path):
    """A file with an average pool whose padding is negative, as no op may have it."""
    x, y = gp.LogicalTensor(0, "f32", (1, 3, 8, 8)), gp.LogicalTensor(1, "f32", (1, 3, 5, 5))
    graph = gp.Graph()
    window = {"strides": [2, 2], "kernel": [2, 2], "pads_begin": [1, 1], "pads_end": [1, 1], "data_format": "NCX"}
    graph.add_op(gp.Op(4, "AvgPool", [x], [y], exclude_pad=True, **window))
    graph.to_json(tmp_path / "pool.json")
    return edited(tmp_path / "pool.json", lambda ops: ops[0]["attrs"]["pads_end"].update(value=[-1, 1]))


def test_an_attribute_that_a_knob_mends(pooled):
    with pytest.raises(gp.InvalidOpError, match='"pads_end" has a value that is too small'):
        gp.Graph.from_json(pooled)
    with pytest.raises(gp.InvalidOpError, match='"pads_end" has a value that is too small'):
        build(pooled, {"mb": "2"})
    graph = build(pooled, {"op-attrs": "4:pads_end:0x0", "mb": "2"})
    assert graph.tensors[1].shape == (2, 3, 4, 4)


@pytest.mark.parametrize(("number", "mended"), [(1, {}), (0, {"in-shapes": "0:4x6"}), (0, {"in-shapes": "0:1x6*12x2"})])
def test_a_tensor_of_two_shapes_that_a_knob_or_inference_mends(case, number, mended):
    def edit(ops):
        ops.append(copy.deepcopy(ops[0]) | {"id": 8})
        for tensor in (*ops[3]["inputs"], *ops[3]["outputs"]):
            if tensor["id"] != number:
                tensor["id"] += 10 if ops[3]["outputs"] == [tensor] else 0
            else:
                tensor["shape"] = [3, 6]
        ops[3]["kind"], ops[3]["attrs"] = "Dequantize", ops[0]["attrs"]
        if number == 1:  # a further reader of the computed tensor, which says another shape
            ops[3] |= {"kind": "ReLU", "attrs": {}, "inputs": ops[3]["outputs"]}
            ops[3]["outputs"] = [ops[3]["inputs"][0] | {"id": 11}]

    edited(case, edit)
    with pytest.raises(gp.InvalidGraphError, match=f"tensor id {number} means two tensors"):
        gp.Graph.from_json(case)
    graph = build(case, mended)
    assert graph.tensors[number].shape in ((4, 6), (1, 6))
    if number == 0:
        with pytest.raises(gp.InvalidGraphError, match="tensor id 0 means two tensors"):
            build(case, {"mb": "2"})


@pytest.mark.parametrize(("key", "value", "mended"), [
    ("dtype", "bf16", {"dt": "f32"}), ("dtype", "s32", {"dt": "2:f32"}),
    ("property_type", "undef", {"tensor-property": "2:constant"}), ("stride", [9, 1], {"in-shapes": "2:*ab"}),
])  # fmt: skip
def test_a_tensor_that_two_ops_describe_differently(case, key, value, mended):
    def edit(ops):
        reader = copy.deepcopy(ops[2]) | {"id": 8}
        reader["inputs"] = [ops[1]["inputs"][1] | {key: value}]
        reader["outputs"] = [ops[1]["inputs"][1] | {"id": 11, "property_type": "undef"}]
        ops.append(reader)

    edited(case, edit)
    for knobs in (None, parse_knobs({}), parse_knobs({"mb": "2"})):
        with pytest.raises(gp.InvalidArgumentError, match=r"tensor id 2 means two|data type that does not fit"):
            gp.Graph.from_json(case, knobs=knobs)
    assert build(case, mended).tensors[2] == gp.LogicalTensor(2, "f32", (6, 8), property="constant")


@pytest.mark.parametrize("edit", [
    lambda ops: ops[0]["attrs"].pop("scales"), lambda ops: ops[0]["attrs"]["scales"].update(value=[]),
    lambda ops: ops[0].update(inputs=[]), lambda ops: ops[0].update(outputs=[]), lambda ops: ops[1]["inputs"].pop(),
    lambda ops: ops[1].update(kind="End"), lambda ops: ops[1].update(kind="Nothing"),
    lambda ops: ops[0]["attrs"]["axis"].update(value=7), lambda ops: ops[0].update(id=1),
    lambda ops: ops[2]["inputs"][0].update(id=4), lambda ops: ops[2]["outputs"][0].update(id=1),
])  # fmt: skip
@pytest.mark.parametrize("knobs", [{}, {"mb": "3"}, {"dt": "bf16"}, {"in-shapes": "0:2x3+2:3x5"}])
def test_what_no_knob_mends_is_refused(case, edit, knobs):
    with pytest.raises(GraphpoolError):
        build(edited(case, edit), knobs)


def test_a_batch_behind_a_long_chain_of_conversions(tmp_path):
    graph = gp.Graph()
    chain = [gp.LogicalTensor(k, "f32", (2, 3)) for k in range(3001)]
    for k in range(3000):
        graph.add_op(gp.Op(k, "Reorder", [chain[k]], [chain[k + 1]]))
    graph.to_json(tmp_path / "chain.json")
    assert build(tmp_path / "chain.json", {"mb": "5"}).tensors[3000].shape == (5, 3)
