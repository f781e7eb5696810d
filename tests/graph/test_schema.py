"""The op table: every kind has a valid case; counts, types and attributes are refused with messages that help."""

from __future__ import annotations

import json
import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphpool.errors import GraphpoolError, InvalidDataTypeError, InvalidOpError, InvalidShapeError
from graphpool.graph.schema import SCHEMAS, TABLES, get_schema
from graphpool.typing import UNKNOWN_DIM, DataType
from tests.helpers.schema_cases import FakeOp, FakeTensor, case, make_op, tensor

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "../shared/data/benchdnn-graph/cases"


def test_table_has_each_kind_once() -> None:
    assert len(SCHEMAS) == sum(len(table) for table in TABLES)


def test_onednn_has_88_kinds() -> None:
    assert Counter(row.category for row in TABLES[0]) == {
        "Element-wise, one input": 19, "Element-wise, gradients": 12, "Element-wise, several inputs": 14,
        "Matrix products and convolutions": 7, "Pooling and interpolation": 6, "Normalisation": 7, "Softmax": 4,
        "Reductions": 7, "Data movement": 6, "Quantisation": 4, "Markers": 2,
    }  # fmt: skip


@pytest.mark.parametrize("kind", SCHEMAS)
def test_rows_are_consistent(kind: str) -> None:
    schema = get_schema(kind)
    assert schema.doc.endswith(".")
    assert schema.infer.__doc__
    assert {port.type for port in (*schema.inputs, *schema.outputs)} == set(schema.types)
    for name, attribute in schema.attributes.items():
        assert attribute.name == name
        assert not (attribute.required and attribute.default is not None)
        if attribute.default is not None:
            assert attribute.convert(attribute.default, "op", kind) == attribute.default
    for a, b in schema.commutative:
        assert schema.inputs[a].name != schema.inputs[b].name


@pytest.mark.parametrize("kind", SCHEMAS)
def test_minimal_op_is_valid_and_its_shapes_are_inferred(kind: str) -> None:
    op = case(kind)
    op.validate()
    shapes = op.infer()
    assert op.agrees_with(shapes)
    if kind != "Wildcard":
        assert shapes == [output.shape for output in op.outputs]


@pytest.mark.parametrize("kind", SCHEMAS)
def test_unknown_ranks_and_dimensions_infer_without_error(kind: str) -> None:
    op = case(kind)
    schema = get_schema(kind)
    blank = [FakeTensor(t.id, t.dtype, None) for t in op.outputs]
    unknown = FakeOp(kind, op.inputs, tuple(blank), op.attrs)
    for shapes in ([None] * len(op.inputs), [(UNKNOWN_DIM,) * len(t.shape or ()) for t in op.inputs]):
        assert op.agrees_with(schema.infer_shapes(unknown, shapes))


@pytest.mark.parametrize("kind", [kind for kind in SCHEMAS if kind not in ("Wildcard", "End")])
def test_wrong_counts_and_types_are_refused(kind: str) -> None:
    op = case(kind)
    many = tuple(op.inputs[-1:] * 70)
    with pytest.raises(InvalidOpError, match=r"wrong number of inputs; accepted: .*; got: 70") as info:
        FakeOp(kind, many, op.outputs, op.attrs).validate()
    assert (info.value.op_id, info.value.op_kind, info.value.side) == (3, kind, "input")
    with pytest.raises(InvalidOpError, match="wrong number of outputs"):
        FakeOp(kind, op.inputs, op.outputs * 70, op.attrs).validate()
    odd = (FakeTensor(99, DataType.UNDEF, op.inputs[0].shape), *op.inputs[1:])
    with pytest.raises(InvalidDataTypeError, match=r"accepted: .*; got: undef") as typed:
        FakeOp(kind, odd, op.outputs, op.attrs).validate()
    assert typed.value.tensor_id == 99
    assert typed.value.port == get_schema(kind).inputs[0].name


def test_type_variables_must_agree() -> None:
    with pytest.raises(InvalidDataTypeError) as info:
        make_op("MatMul", ["bf16 2,3", "f32 3,4"], ["bf16 2,4"]).validate()
    assert str(info.value) == (
        'op 3 "n" (MatMul): input "weights" (tensor 11) has a data type that does not fit; accepted: bf16, as every '
        "port of type T; got: f32; insert a TypeCast or make the ports of type T agree"
    )
    assert info.value.port == "weights"


def test_validation_order_is_inputs_before_outputs() -> None:
    with pytest.raises(InvalidDataTypeError, match='input "src"'):
        make_op("ReLU", ["s32 2"], ["f32 2", "f32 2"]).validate()


def test_closest_kinds_are_named() -> None:
    with pytest.raises(InvalidOpError, match='did you mean "MatMul"'):
        get_schema("Matmul")
    with pytest.raises(InvalidOpError, match=r"unknown op kind; .*got: 'Zzz'$"):
        get_schema("Zzz")


def test_complete_fills_defaults_and_does_not_change_its_argument() -> None:
    given = {"axes": [1]}
    assert get_schema("ReduceSum").complete("op", given) == {"axes": (1,), "keep_dims": False}
    assert given == {"axes": [1]}
    assert "momentum" not in get_schema("BatchNormForwardTraining").complete("op", {"epsilon": 0.1})
    first = get_schema("MatMul").complete("op", {})
    first["transpose_a"] = True
    assert get_schema("MatMul").complete("op", {})["transpose_a"] is False


@pytest.mark.parametrize(
    ("kind", "name", "value", "stored"),
    [
        ("Elu", "alpha", 1, 1.0),
        ("Elu", "alpha", np.float32(0.5), 0.5),
        ("Elu", "alpha", np.array(2), 2.0),
        ("Concat", "axis", np.int64(-1), -1),
        ("Concat", "axis", np.array(1), 1),
        ("ReduceSum", "keep_dims", np.bool_(True), True),
        ("ReduceSum", "keep_dims", np.array(False), False),
        ("ReduceSum", "axes", np.array([0, 2], np.int32), (0, 2)),
        ("ReduceSum", "axes", range(2), (0, 1)),
        ("Quantize", "scales", [1, 0.5], (1.0, 0.5)),
        ("Quantize", "scales", np.array([0.25], np.float32), (0.25,)),
    ],
)
def test_attribute_values_are_stored_as_python_values(kind: str, name: str, value: Any, stored: Any) -> None:
    found = get_schema(kind).complete("op", {name: value})[name]
    assert found == stored
    assert type(found) is type(stored)
    if isinstance(found, tuple):
        assert [type(item) for item in found] == [type(item) for item in stored]


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("Concat", "axis", True),
        ("Concat", "axis", np.bool_(True)),
        ("Concat", "axis", np.array(True)),
        ("Concat", "axis", 1.0),
        ("Concat", "axis", "1"),
        ("Concat", "axis", 2**63),
        ("Concat", "axis", None),
        ("Elu", "alpha", "1"),
        ("Elu", "alpha", True),
        ("Elu", "alpha", 10**400),
        ("Elu", "alpha", np.array([1.0])),
        ("ReduceSum", "keep_dims", 1),
        ("ReduceSum", "axes", 1),
        ("ReduceSum", "axes", [True]),
        ("ReduceSum", "axes", [0.5]),
        ("ReduceSum", "axes", np.zeros((1, 1), int)),
        ("ReduceSum", "axes", "12"),
        ("Quantize", "scales", 1.0),
        ("GELU", "mode", 3),
        ("GELU", "mode", "erf"),
        ("AvgPool", "rounding_type", "round"),
        ("Convolution", "auto_pad", "SAME"),
    ],
)
def test_attribute_values_of_the_wrong_kind_are_refused(kind: str, name: str, value: Any) -> None:
    with pytest.raises(InvalidOpError, match=f'op: attribute "{name}" has a wrong value; accepted: .*; got: ') as info:
        get_schema(kind).complete("op", {name: value})
    assert (info.value.op_kind, info.value.attribute) == (kind, name)


def test_unknown_and_missing_attributes_are_refused() -> None:
    with pytest.raises(InvalidOpError, match=r'Convolution has no attribute "stride"; .* did you mean "strides"'):
        get_schema("Convolution").complete("op 1", {"stride": [1, 1]})
    with pytest.raises(InvalidOpError, match='op 1: attribute "alpha" is required; accepted: a real number'):
        get_schema("Elu").complete("op 1", {})
    with pytest.raises(InvalidOpError, match="accepted: no attributes"):
        get_schema("ReLU").complete("op 1", {"alpha": 1})


def test_tables_are_read_only() -> None:
    with pytest.raises(TypeError):
        SCHEMAS["New"] = SCHEMAS["ReLU"]  # type: ignore[index]


def test_given_output_shape_fills_what_the_inputs_leave_open() -> None:
    op = make_op("ReLU", ["f32 *"], ["f32 2,3"])
    assert get_schema("ReLU").infer_shapes(op, [None]) == [(2, 3)]
    assert get_schema("ReLU").infer_shapes(op, [(UNKNOWN_DIM, 4)]) == [(2, 4)]
    assert get_schema("ReLU").infer_shapes(op, [(UNKNOWN_DIM,)]) == [(UNKNOWN_DIM,)]


@pytest.mark.parametrize(
    ("shape", "message"),
    [((1,) * 13, "too many dimensions"), ((2, -1), "negative dimension 1"), ((2**40, 2**40), "too large")],
)
def test_impossible_shapes_are_refused(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(InvalidShapeError, match=message) as info:
        get_schema("ReLU").infer_shapes(make_op("ReLU", ["f32 *"], ["f32 *"]), [shape])
    assert info.value.op_id == 3


def test_wildcard_takes_anything() -> None:
    everything = [tensor(f"{dtype} 2", i) for i, dtype in enumerate(DataType)]
    FakeOp("Wildcard", tuple(everything), tuple(everything)).validate()
    FakeOp("Wildcard", (), ()).validate()
    assert FakeOp("Wildcard", (), tuple(everything[:2])).infer() == [None, None]


def _corpus_tensor(entry: dict[str, Any]) -> FakeTensor:
    # The corpus writes an unknown rank as one unknown dimension.
    shape = None if entry["shape"] == [UNKNOWN_DIM] else tuple(entry["shape"])
    return FakeTensor(entry["id"], DataType(entry["dtype"]), shape)


def _corpus_op(entry: dict[str, Any]) -> FakeOp:
    kind = {"BiasAddBackprop": "BiasAddBackward"}.get(entry["kind"], entry["kind"])
    values = {
        name: bool(item["value"]) if item["type"] == "bool" else item["value"]
        for name, item in entry.get("attrs", {}).items()
    }
    sides = [tuple(_corpus_tensor(item) for item in entry[side]) for side in ("inputs", "outputs")]
    return FakeOp(kind, *sides, get_schema(kind).complete("op", values), entry["id"], entry["name"])


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the benchdnn graph corpus is not here")
def test_benchdnn_graphs_are_accepted_with_their_shapes() -> None:
    """Every op of the corpus validates, and its outputs have the shapes that oneDNN wrote down."""
    count, refused = 0, []
    for path in sorted(CORPUS.glob("**/*.json")):
        for entry in json.loads(path.read_text())["graph"]:
            try:
                op = _corpus_op(entry)
                op.validate()
                if not op.agrees_with(op.infer()):
                    refused.append(f"{path.name}: {op.label}: {op.infer()}")
            except GraphpoolError as error:
                refused.append(f"{path.name}: {error}")
            count += 1
    assert not refused
    assert count > 500


def test_reference_page_names_every_kind(tmp_path: Path) -> None:
    generate = runpy.run_path(str(ROOT / "docs/generate_ops.py"))["generate"]
    page, again = tmp_path / "ops.md", tmp_path / "again.md"
    generate(page)
    generate(again)
    text = page.read_text()
    assert text == again.read_text()
    assert [line[4:] for line in text.splitlines() if line.startswith("### ")] == list(SCHEMAS)
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == list(
        dict.fromkeys(schema.category for schema in SCHEMAS.values())
    )
    assert "`scales` | f32[] | required" in text
