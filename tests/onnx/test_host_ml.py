"""What only the host can run, without fallback: maps, texts, errors of contents; probabilities of support vectors."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

import graphpool as gp
from graphpool.onnx._words import Lookup
from tests.helpers.onnx_models import peer_session


def ml_model(kind, inputs, outputs=("y",), **attributes):
    """A model of one node; inputs by name are element types and shapes, or TypeProtos."""
    types = {
        name: info if hasattr(info, "map_type") else helper.make_tensor_type_proto(*info)
        for name, info in inputs.items()
    }
    node = helper.make_node(kind, list(inputs), list(outputs), f"the_{kind}", domain="ai.onnx.ml", **attributes)
    ports = [ValueInfoProto(name=name, type=type_) for name, type_ in types.items()]
    graph = helper.make_graph([node], "g", ports, [ValueInfoProto(name=name) for name in outputs])
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def run(model, **inputs):
    with gp.onnx.load(model, fallback=False) as loaded:
        results = list(loaded.run(inputs).values())
    return results if len(results) > 1 else results[0]


def map_type(key, value):
    return helper.make_map_type_proto(key, helper.make_tensor_type_proto(value, []))


SCORES = np.array([[0.25, 0.5, 0.25], [1, 0, 0]], np.float32)


@pytest.mark.parametrize("labels", [[7, 0, -1], ["a", "b", "ü"]])
def test_zip_map_gives_a_map_for_each_row(labels):
    name = "classlabels_int64s" if isinstance(labels[0], int) else "classlabels_strings"
    model = ml_model("ZipMap", {"x": (TensorProto.FLOAT, (None, 3))}, **{name: labels})
    found = run(model, x=SCORES)
    assert found == [dict(zip(labels, row, strict=True)) for row in SCORES.tolist()]
    assert {type(score) for row in found for score in row.values()} == {float}
    assert [list(row) for row in found] == [labels, labels]
    assert run(model, x=SCORES[:0]) == []


def test_zip_map_of_other_labels_than_scores():
    model = ml_model("ZipMap", {"x": (TensorProto.FLOAT, (None, 3))}, classlabels_int64s=[1, 2])
    with pytest.raises(gp.GraphpoolError, match=r"the_ZipMap"):
        run(model, x=SCORES)


def test_a_vector_is_one_row_of_a_zip_map():
    model = ml_model("ZipMap", {"x": (TensorProto.FLOAT, (3,))}, classlabels_int64s=[4, 5, 6])
    assert run(model, x=SCORES[0]) == [{4: 0.25, 5: 0.5, 6: 0.25}]


@pytest.mark.parametrize(("value", "dtype"), [("FLOAT", "float32"), ("DOUBLE", "float64"), ("INT64", "int64")])
def test_dict_vectorizer_has_the_type_of_the_values(value, dtype):
    inputs = {"x": map_type(TensorProto.STRING, getattr(TensorProto, value))}
    model = ml_model("DictVectorizer", inputs, string_vocabulary=["a", "b", "c"])
    found = run(model, x={"c": 3, "a": 1, "other": 5})
    assert (found.tolist(), found.dtype) == ([[1, 0, 3]], dtype)


@pytest.mark.parametrize(("target", "form", "wanted"), [
    ("TO_FLOAT", "DENSE", [[1.5, 2.0]]), ("TO_INT64", "DENSE", [[1, 2]]),
    ("TO_STRING", "DENSE", [["1.500000", "2.000000"]]),
    ("TO_FLOAT", "SPARSE", [[0, 1.5, 0, 2.0]]), ("TO_STRING", "SPARSE", [["", "1.500000", "", "2.000000"]]),
])  # fmt: skip
def test_cast_map(target, form, wanted):
    model = ml_model(
        "CastMap", {"x": map_type(TensorProto.INT64, TensorProto.FLOAT)}, cast_to=target, map_form=form, max_map=4
    )
    assert run(model, x={3: 2.0, 1: 1.5}).tolist() == wanted


def test_category_mapper_both_ways():
    categories = {"cats_strings": ["x", "y"], "cats_int64s": [3, 4], "default_int64": -7, "default_string": "?"}
    model = ml_model("CategoryMapper", {"x": (TensorProto.STRING, (None, 2))}, **categories)
    found = run(model, x=[["y", "x"], ["z", "y"]])
    assert (found.tolist(), found.dtype) == ([[4, 3], [-7, 4]], np.int64)
    model = ml_model("CategoryMapper", {"x": (TensorProto.INT64, (3,))}, **categories)
    assert run(model, x=np.array([4, 9, 3])).tolist() == ["y", "?", "x"]


def classifier(count=3, labels=None):
    """A support vector classifier of `count` classes with one vector each, on two features."""
    pairs = count * (count - 1) // 2
    rng = np.random.default_rng(0)
    return ml_model(
        "SVMClassifier", {"x": (TensorProto.FLOAT, (None, 2))}, ("label", "scores"),
        coefficients=rng.normal(size=(count - 1) * count).tolist(), kernel_type="RBF", kernel_params=[0.5, 0.0, 3.0],
        support_vectors=rng.normal(size=2 * count).tolist(), vectors_per_class=[1] * count,
        rho=rng.normal(size=pairs).tolist(), prob_a=(-1 - rng.random(pairs)).tolist(), prob_b=[0.1] * pairs,
        **(labels or {"classlabels_ints": list(range(count))}),
    )  # fmt: skip


@pytest.mark.parametrize("count", [3, 5])
def test_probabilities_of_classes_agree_with_their_pairs(count):
    """Against the optimum itself: a linear system with one multiplier, as the source of the method gives it."""
    from onnx.reference.ops.aionnxml.op_svm_classifier import sigmoid_probability

    model, x = classifier(count), np.random.default_rng(1).normal(size=(6, 2)).astype(np.float32)
    _, found = run(model, x=x)
    del model.graph.node[0].attribute[[a.name for a in model.graph.node[0].attribute].index("prob_a")]
    del model.graph.node[0].attribute[[a.name for a in model.graph.node[0].attribute].index("prob_b")]
    _, scores = run(model, x=x)
    given = {a.name: list(a.floats) for a in classifier(count).graph.node[0].attribute}
    pairs = list(zip(*np.triu_indices(count, 1), strict=True))
    for row, own in zip(scores, found, strict=True):
        wins = np.zeros((count, count))
        for k, (i, j) in enumerate(pairs):
            wins[i, j] = sigmoid_probability(row[k], given["prob_a"][k], given["prob_b"][k])
            wins[j, i] = 1 - wins[i, j]
        system = np.zeros((count + 1, count + 1))
        for i, j in pairs:
            system[i, j] = system[j, i] = -wins[i, j] * wins[j, i]
        system[range(count), range(count)] = (wins**2).sum(0)
        system[:count, count] = system[count, :count] = 1
        wanted = np.linalg.solve(system, [0] * count + [1])[:count]
        np.testing.assert_allclose(own, wanted, atol=5e-3)
        np.testing.assert_allclose(own.sum(), 1, rtol=1e-5)


def test_labels_are_objects_each_a_str():
    labels, _ = run(classifier(labels={"classlabels_strings": ["a", "bb", "c"]}), x=np.ones((2, 2), np.float32))
    assert labels.dtype == object
    assert {type(label) for label in labels} == {str}


TEXTS = np.array([["b", "a"], ["c", "zz"]], object)


def text_model(kind, x, attributes, *more, domain="", imports=(("", 18), ("ai.onnx.ml", 4), ("com.microsoft", 1))):
    """A model of one node that reads texts, and other inputs that are constants."""
    constants = [helper.make_tensor(f"c{k}", TensorProto.INT64, np.shape(c), c) for k, c in enumerate(more)]
    node = helper.make_node(kind, ["x", *(c.name for c in constants)], ["y"], "the_node", domain=domain, **attributes)
    port = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), [None] * x.ndim)
    graph = helper.make_graph([node], "g", [port], [ValueInfoProto(name="y")], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(*item) for item in imports], ir_version=9)


@pytest.mark.parametrize(("attributes", "wanted", "dtype"), [
    ({"keys_strings": ["a", "b"], "values_int64s": [5, 6], "default_int64": 9}, [[6, 5], [9, 9]], np.int64),
    ({"keys_strings": ["a", "b"], "values_floats": [0.5, 6.0]}, [[6, 0.5], [0, 0]], np.float32),
    ({"keys_strings": ["a", "a"], "values_strings": ["x", "y"]}, [["_Unused", "x"], ["_Unused"] * 2], object),
])  # fmt: skip
def test_label_encoder_of_texts(attributes, wanted, dtype):
    found = run(text_model("LabelEncoder", TEXTS, attributes, domain="ai.onnx.ml"), x=TEXTS)
    assert (found.tolist(), found.dtype) == (wanted, dtype)


def test_label_encoder_of_numbers_to_texts():
    x = np.array([1.5, np.nan, 2.0], np.float32)
    attributes = {"keys_floats": [float("nan"), 2.0], "values_strings": ["none", "two"], "default_string": "?"}
    assert run(text_model("LabelEncoder", x, attributes, domain="ai.onnx.ml"), x=x).tolist() == ["?", "none", "two"]


def test_one_hot_encoder_of_texts():
    found = run(text_model("OneHotEncoder", TEXTS, {"cats_strings": ["a", "b"]}, domain="ai.onnx.ml"), x=TEXTS)
    assert (found.tolist(), found.dtype) == ([[[0, 1], [1, 0]], [[0, 0], [0, 0]]], np.float32)


def test_another_category_is_an_error_where_zeros_are_not_wanted():
    x = np.array([3, 1, 3])
    model = text_model("OneHotEncoder", x, {"cats_int64s": [1, 3], "zeros": 0}, domain="ai.onnx.ml")
    assert run(model, x=x).tolist() == [[0, 1], [1, 0], [0, 1]]
    with pytest.raises(gp.BackendError, match=r"the_node.*none of the categories"):
        run(model, x=x + 1)


@pytest.mark.parametrize(("kind", "attributes", "more", "wanted"), [
    ("Identity", {}, [], TEXTS), ("Reshape", {}, [[0, 2, 1]], TEXTS.reshape(2, 2, 1)),
    ("Flatten", {"axis": 0}, [], TEXTS.reshape(1, 4)), ("Unsqueeze", {}, [[0, 3]], TEXTS[None, :, :, None]),
    ("Gather", {"axis": 1}, [[1]], TEXTS[:, [1]]), ("Transpose", {"perm": [1, 0]}, [], TEXTS.T),
    ("Expand", {}, [[2, 2, 2]], np.stack([TEXTS, TEXTS])),
])  # fmt: skip
def test_moves_of_texts(kind, attributes, more, wanted):
    found = run(text_model(kind, TEXTS, attributes, *more), x=TEXTS)
    assert (found.tolist(), found.dtype) == (wanted.tolist(), object)


def test_squeeze_of_texts():
    for axes in ([], [[0, -1]]):
        assert run(text_model("Squeeze", TEXTS[None, :, :, None], {}, *axes), x=TEXTS[None, :, :, None]).shape == (2, 2)


@pytest.mark.parametrize(("words", "attributes", "wanted"), [
    (["a", "B", "ü"], {"case_change_action": "UPPER", "stopwords": ["b"]}, ["A", "Ü"]),
    (["a", "b", "B"], {"case_change_action": "LOWER", "stopwords": ["b"], "is_case_sensitive": 1}, ["a", "b"]),
    (["a", "ü", "b"], {"stopwords": ["A", "b", "Ü"], "is_case_sensitive": 0}, [""]),
    (["a", "B"], {"case_change_action": "UPPER"}, ["A", "B"]),
])  # fmt: skip
def test_string_normalizer(words, attributes, wanted):
    for x in (np.array(words, object), np.array([words], object)):
        found = run(text_model("StringNormalizer", x, attributes), x=x)
        assert (found.ndim, found.reshape(-1).tolist()) == (x.ndim, wanted)


TOKENS = np.array(["no dogs, 2 cats", "x", ""], object)


@pytest.mark.parametrize(("attributes", "wanted"), [
    ({"tokenexp": "[a-zA-Z0-9_]+", "mincharnum": 2}, [["no", "dogs", "cats"], ["#"] * 3, ["#"] * 3]),
    ({"tokenexp": "do|dogs|no", "mincharnum": 1}, [["no", "dogs"], ["#"] * 2, ["#"] * 2]),
    ({"separators": [" ", ", "], "mincharnum": 1, "mark": 1},
     [["\x02", "no", "dogs", "2", "cats", "\x03"], ["\x02", "x", "\x03", "#", "#", "#"],
      ["\x02", "\x03", "#", "#", "#", "#"]]),
    ({"separators": [""], "mincharnum": 1}, [list("no dogs, 2 cats"), ["x", *"#" * 14], ["#"] * 15]),
])  # fmt: skip
def test_tokenizer(attributes, wanted):
    model = text_model("Tokenizer", TOKENS, {"pad_value": "#", "mark": 0} | attributes, domain="com.microsoft")
    assert run(model, x=TOKENS).tolist() == wanted


def test_the_work_of_words_is_bounded():
    x = np.array(["a"] * 3000, object)
    model = text_model("TfIdfVectorizer", x, {
        "mode": "TF", "min_gram_length": 2, "max_gram_length": 2, "max_skip_count": 10**9, "ngram_counts": [0, 0],
        "ngram_indexes": [0], "pool_strings": ["b", "c"]})  # fmt: skip
    with gp.onnx.load(model, limits=gp.Limits(host_steps=10**6)) as loaded, pytest.raises(gp.LimitError):
        loaded.run({"x": x})
    grams = {"ngram_indexes": [2**40], "mode": "TF", "min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0}
    with pytest.raises(gp.GraphpoolError):
        run(text_model("TfIdfVectorizer", x, {**grams, "ngram_counts": [0], "pool_strings": ["a"]}), x=x)


def count_one_by_one(rows, grams, columns, weights, mode, skipped):
    """What TfIdfVectorizer counts, by looking at every place of every sequence."""
    found = np.zeros((len(rows), max(columns) + 1), np.float32)
    for row, into in zip(rows, found, strict=True):
        for gram, column, weight in zip(grams, columns, weights, strict=True):
            steps = range(1, skipped + 2 if len(gram) > 1 else 2)
            places = [range(start, start + step * len(gram), step) for step in steps for start in range(len(row))]
            times = sum(p[-1] < len(row) and [row[k] for k in p] == list(gram) for p in places)
            if times and mode == "IDF":
                into[column] = weight
            elif times:
                into[column] += times * (1 if mode == "TF" else weight)
    return found


@given(st.data())
def test_sequences_of_words_are_counted_as_one_by_one(data):
    words = data.draw(st.sampled_from([["a", "b", "ü"], [0, 7, -1]]))
    sequences = st.lists(st.sampled_from(words), min_size=1, max_size=3).map(tuple)
    grams = sorted(data.draw(st.lists(sequences, min_size=1, max_size=8, unique=True)), key=len)
    are_apart = data.draw(st.booleans())
    numbers = data.draw(st.permutations(range(len(grams))))
    columns = numbers if are_apart else [number // 2 for number in numbers]
    mode = data.draw(st.sampled_from(["TF", "IDF", "TFIDF"]))
    skipped, weights = data.draw(st.integers(0, 3)), [0.5 + number for number in range(len(grams))]
    nrows, nwords = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 7))
    letters = st.lists(st.sampled_from([*words, "zz" if words[0] == "a" else 5]), min_size=nwords, max_size=nwords)
    rows = data.draw(st.lists(letters, min_size=nrows, max_size=nrows))
    starts = [sum(len(gram) for gram in grams if len(gram) < length) for length in (1, 2, 3)]
    attributes = {
        "mode": mode, "min_gram_length": 1, "max_gram_length": 3, "max_skip_count": skipped, "ngram_counts": starts,
        "ngram_indexes": columns, "weights": weights,
        "pool_strings" if words[0] == "a" else "pool_int64s": [word for gram in grams for word in gram]}  # fmt: skip
    x = np.array(rows, object if words[0] == "a" else np.int64).reshape(nrows, nwords)
    with gp.onnx.load(text_model("TfIdfVectorizer", x, attributes)) as model:
        found = model.run({"x": x})["y"]
    expected = count_one_by_one(rows, grams, columns, weights, mode, skipped)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    with gp.onnx.load(text_model("TfIdfVectorizer", x[0], attributes)) as model:
        np.testing.assert_array_equal(model.run({"x": x[0]})["y"], found[0])


def test_what_follows_the_words_of_texts_runs_on_kernels():
    """A pipeline as skl2onnx writes it: a run tells how many words a text has, the width of the counts is known."""
    nodes = [
        helper.make_node("Reshape", ["x", "flat"], ["texts"]),
        helper.make_node("StringNormalizer", ["texts"], ["lower"], case_change_action="LOWER"),
        helper.make_node("Tokenizer", ["lower"], ["words"], domain="com.microsoft", tokenexp="[a-z]+", mincharnum=2,
                         pad_value="#", mark=0),
        helper.make_node("Flatten", ["words"], ["rows"]),
        helper.make_node("TfIdfVectorizer", ["rows"], ["counts"], mode="TF", min_gram_length=1, max_gram_length=1,
                         max_skip_count=0, ngram_counts=[0], ngram_indexes=[0, 1, 2],
                         pool_strings=["no", "dogs", "is"]),
        helper.make_node("MatMul", ["counts", "weights"], ["y"]),
    ]  # fmt: skip
    constants = [numpy_helper.from_array(np.array([-1]), "flat"),
                 numpy_helper.from_array(np.float32([[1], [10], [100]]), "weights")]  # fmt: skip
    port = helper.make_tensor_value_info("x", TensorProto.STRING, ["n", 1])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [port], [result], constants)
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    with gp.onnx.load(helper.make_model(graph, opset_imports=imports, ir_version=9), fallback=False) as model:
        texts = [["No dogs. No dogs!"], ["IS x"], [""], ["dogs"]]
        for count in (3, 4, 2):
            assert model.run({"x": texts[:count]})["y"].tolist() == [[22], [100], [0], [10]][:count]
        assert [part.ops[0].kind for part in model.partitions if part.is_supported] == ["MatMul"]
        assert model.stats().compilations == 1


@pytest.mark.parametrize("wrong", [3, None, b"a"])
def test_an_item_that_is_no_text(wrong):
    model = text_model("OneHotEncoder", TEXTS, {"cats_strings": ["a", "b"]}, domain="ai.onnx.ml")
    for x in (np.array([["a", wrong]], object), [["a", wrong]]):
        with pytest.raises(gp.InvalidDataTypeError, match="each a str"):
            run(model, x=x)


def test_a_text_that_is_computed_ahead():
    """Its memory is known, so that it is within the limit of what is computed ahead."""
    attributes = {"keys_int64s": [0], "values_strings": ["missing"], "default_string": "?"}
    nodes = [
        helper.make_node("LabelEncoder", ["zero"], ["filler"], domain="ai.onnx.ml", **attributes),
        helper.make_node("Concat", ["x", "filler"], ["y"], axis=0),
    ]
    port = helper.make_tensor_value_info("x", TensorProto.STRING, ["n"])
    constants = [numpy_helper.from_array(np.array([0]), "zero")]
    graph = helper.make_graph(nodes, "g", [port], [ValueInfoProto(name="y")], constants)
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9)
    assert run(model, x=["a"]).tolist() == ["a", "missing"]


@pytest.mark.parametrize("kind", ["LinearClassifier", "SVMClassifier"])
def test_a_classifier_numbers_its_labels_and_looks_texts_up(kind):
    labels = {"classlabels_strings": ["a", "bb", "c"]}
    x = np.random.default_rng(1).normal(size=(6, 2)).astype(np.float32)
    linear = {"coefficients": [1.0, 2.0, -1.0, 0.5, 0.0, 1.0], "intercepts": [0.0, 0.1, 0.2]}
    ports = {"x": (TensorProto.FLOAT, (None, 2))}, ("label", "scores")
    models = [
        ml_model("LinearClassifier", *ports, **linear, **given) if kind == "LinearClassifier" else classifier(3, given)
        for given in (labels, {"classlabels_ints": [0, 1, 2]})
    ]
    (texts, scores), (numbers, others) = (run(model, x=x) for model in models)
    assert texts.tolist() == [labels["classlabels_strings"][number] for number in numbers]
    np.testing.assert_array_equal(scores, others)
    assert len(set(texts)) > 1


def test_files_of_strangers_get_no_texts():
    with pytest.raises(gp.UnsupportedError, match="texts and maps"):
        gp.onnx.load(text_model("Identity", TEXTS, {}), untrusted=True, shapes={"x": (2, 2)}).run({"x": TEXTS})


CASES = {
    "zip-map": (ml_model("ZipMap", {"x": (TensorProto.FLOAT, (None, 3))}, classlabels_strings=["a", "b", "c"]), SCORES),
    "dict-vectorizer": (
        ml_model("DictVectorizer", {"x": map_type(TensorProto.INT64, TensorProto.FLOAT)}, int64_vocabulary=[3, 1, 2]),
        {1: 0.5, 3: 2.0, 9: 1.0}),
    "cast-map-dense": (
        ml_model("CastMap", {"x": map_type(TensorProto.INT64, TensorProto.FLOAT)}, cast_to="TO_STRING"),
        {3: 2.0, 1: 1.5}),
    "cast-map-sparse": (
        ml_model("CastMap", {"x": map_type(TensorProto.INT64, TensorProto.FLOAT)}, map_form="SPARSE", max_map=5),
        {3: 2.5, 1: 1.0}),
    "category-mapper": (
        ml_model("CategoryMapper", {"x": (TensorProto.STRING, (2,))}, cats_strings=["x", "y"], cats_int64s=[3, 4]),
        np.array(["y", "q"], object)),
    "svm": (classifier(4, {"classlabels_strings": list("abcd")}), np.random.default_rng(2).normal(size=(5, 2))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_onnx_runtime_gives_the_same(name):
    pytest.importorskip("onnxruntime")
    model, x = CASES[name]
    x = x.astype(np.float32) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x
    session = peer_session(model)
    wanted = session.run(None, {"x": x})
    found = run(model, x=x)
    for mine, theirs in zip(found if len(wanted) > 1 else [found], wanted, strict=True):
        assert type(mine) is type(theirs)
        if isinstance(theirs, np.ndarray):
            assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
            if theirs.dtype == object:
                assert mine.tolist() == theirs.tolist()
            else:
                np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
        else:
            assert mine == theirs


def test_texts_of_any_number_need_one_compilation():
    """The host's results have shapes made of sizes that vary, as ONNX infers them by name."""
    model = ml_model("OneHotEncoder", {"x": (TensorProto.STRING, ("rows", 1))}, cats_strings=["a", "b", "c"])
    model.graph.node.append(helper.make_node("Concat", ["y", "y"], ["joined"], axis=0))
    model.graph.output.append(ValueInfoProto(name="joined"))
    with gp.onnx.load(model) as loaded:
        for rows in (3, 4, 17, 2):
            wanted = np.eye(3, dtype=np.float32)[np.arange(rows) % 3][:, None]
            found = loaded.run({"x": np.array([["abc"[k % 3]] for k in range(rows)], object)})
            np.testing.assert_array_equal(found["joined"], np.concatenate([wanted, wanted]))
        assert loaded.stats().compilations == 1


@given(st.data())
def test_tables_of_numbers_find_what_dicts_do(data):
    dtype = data.draw(st.sampled_from([np.float32, np.float64, np.int32, np.int64]))
    is_float = np.dtype(dtype).kind == "f"
    numbers = st.sampled_from([-1.5, -0.0, 0.0, 2.0, float("nan")]) if is_float else st.integers(-3, 3)
    keys = data.draw(st.lists(numbers, min_size=1, max_size=9))
    values = data.draw(st.lists(st.integers(0, 9), min_size=len(keys), max_size=len(keys)))
    of_values = data.draw(st.sampled_from([np.int64, np.float32]))
    x = np.array(data.draw(st.lists(numbers, max_size=9)), dtype)
    table = {"keys_tensor": np.array(keys, dtype), "values_tensor": np.array(values, of_values)}
    table["default_tensor"] = np.array([-1], of_values)
    attributes = {name: numpy_helper.from_array(array, name) for name, array in table.items()}
    model = ml_model("LabelEncoder", {"x": (helper.np_dtype_to_tensor_dtype(x.dtype), (None,))}, **attributes)
    model.opset_import[1].version = 4
    expected, found = Lookup(0, None, keys, values, -1, of_values)([x], [])[0], run(model, x=x)
    np.testing.assert_array_equal(found, expected)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("first", ["least", -2, "last"])
def test_keys_in_a_row_are_found_by_their_distance(first, dtype):
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    start = {"least": least, "last": most - 2}.get(first, first)
    keys, values = [start, start + 1, start + 2], [10, 20, 30]
    table = {"keys_tensor": np.array(keys, dtype), "values_tensor": np.array(values)}
    attributes = {name: numpy_helper.from_array(array, name) for name, array in table.items()}
    x = np.array([least, least + 1, start, start + 1, start + 2, -3, 0, 1, most - 1, most], dtype)
    model = ml_model("LabelEncoder", {"x": (helper.np_dtype_to_tensor_dtype(x.dtype), (None,))}, **attributes)
    model.opset_import[1].version = 4
    assert run(model, x=x).tolist() == [dict(zip(keys, values, strict=True)).get(key, -1) for key in x.tolist()]


@pytest.mark.parametrize("categories", [[3], [1, 3, 7], [9, -4, 2**40, 0, 5]])
def test_integers_are_marked_among_categories_in_any_order(categories):
    x = np.array([[*categories, 4], [2, *categories]])
    model = ml_model("OneHotEncoder", {"x": (TensorProto.INT64, (None, None))}, cats_int64s=categories, zeros=1)
    expected = (x[..., None] == np.array(categories)).astype(np.float32)
    np.testing.assert_array_equal(run(model, x=x), expected)
    strict = ml_model("OneHotEncoder", {"x": (TensorProto.INT64, (None, None))}, cats_int64s=categories, zeros=0)
    np.testing.assert_array_equal(run(strict, x=x[:, 1:-1]), expected[:, 1:-1])
    with pytest.raises(gp.BackendError, match="none of the categories"):
        run(strict, x=x)


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3, 255, 256, 257, 5000])
def test_a_large_table_of_numbers_is_a_constant_that_kernels_read(count, is_sorted):
    rng = np.random.default_rng(count)
    keys, values = np.cumsum(rng.integers(1, 2**50, count)) - 2**61, rng.random(count).astype(np.float32)
    keys = keys if is_sorted else rng.permutation(keys)
    table = {"keys_int64s": keys.tolist(), "values_floats": values.tolist(), "default_float": -1.0}
    model = ml_model("LabelEncoder", {"x": (TensorProto.INT64, (None,))}, **table)
    places = rng.integers(0, count, 50)
    with gp.onnx.load(model, fallback=False, threads=1) as loaded:
        for near in (-1, 0, 1):
            x = keys[places] + near
            expected = np.where(np.isin(x, keys), values[places], np.float32(-1))
            np.testing.assert_array_equal(loaded.run({"x": x})["y"], expected)
        assert loaded.engine.budget.holdings()["constants"] >= 12 * count
        copy = pickle.loads(pickle.dumps(loaded))
    with copy:
        np.testing.assert_array_equal(copy.run({"x": keys[places]})["y"], values[places])


def test_a_table_of_numbers_whose_elements_are_constants_or_of_another_type():
    keys = [5, 3, 5, 1]
    table = {"keys_int64s": keys, "values_int64s": [10, 20, 30, 40]}
    model = ml_model("LabelEncoder", {"x": (TensorProto.INT64, (3,))}, **table)
    model.graph.node[0].input[0] = "known"
    model.graph.initializer.append(helper.make_tensor("known", TensorProto.INT64, [3], [1, 5, 9]))
    assert run(model, x=np.zeros(3, np.int64)).tolist() == [40, 10, -1]
    model = ml_model("LabelEncoder", {"x": (TensorProto.FLOAT, (3,))}, **table)
    with pytest.raises(gp.UnsupportedError, match=r"the_LabelEncoder.*elements of f32, and keys of s64"):
        run(model, x=np.zeros(3, np.float32))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("places", [1, [-1], [[1, 0], [-2, 1]]])
def test_texts_are_gathered_at_constant_places(places, axis):
    x = np.array([["a", "b"], ["c", "ü"]], object)
    model = text_model("Gather", x, {"axis": axis})
    model.graph.node[0].input.append("places")
    model.graph.initializer.append(numpy_helper.from_array(np.array(places, np.int64), "places"))
    np.testing.assert_array_equal(run(model, x=x), np.take(x, places, axis))
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array([2]), "places"))
    with pytest.raises(gp.BackendError, match="out of bounds"):
        run(model, x=x)


@pytest.mark.parametrize("shape", [(2,), (3, 2), (2, 1, 2)])
def test_sizes_of_extracted_texts_are_known_before_a_run(shape):
    x = np.array(["a", "b", "ü"], object)[np.arange(np.prod(shape)) % 3].reshape(shape)
    model = text_model("ArrayFeatureExtractor", x, {}, [1, 0, 1], domain="ai.onnx.ml")
    model.graph.node[0].output[0] = "texts"
    table = {"keys_strings": ["a", "b"], "values_int64s": [5, 6], "default_int64": 9}
    model.graph.node.append(helper.make_node("LabelEncoder", ["texts"], ["y"], domain="ai.onnx.ml", **table))
    with gp.onnx.load(model, fallback=False) as loaded:
        found = loaded.run({"x": x})["y"]
        assert [part.ops[0].name for part in loaded.partitions] == ["the_node", "y"]
    rows = np.atleast_2d(x)[..., [1, 0, 1]]
    np.testing.assert_array_equal(found, np.vectorize({"a": 5, "b": 6, "ü": 9}.get)(rows))
