"""The committed models are valid ONNX, small, and right about images that they were not trained on."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from graphpool import demo
from graphpool.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

FILE_LIMIT_NBYTES = 300_000
ACCURACY = 0.98

# What each model is there to exercise: at least so many nodes of a kind.
NODES = {
    "digits_cnn": {
        "Conv": 6, "BatchNormalization": 6, "Relu": 6, "Add": 2, "MaxPool": 1, "GlobalAveragePool": 1,
        "Flatten": 1, "Gemm": 1, "Softmax": 1,
    },
    "digits_transformer": {
        "MatMul": 17, "Reshape": 10, "Transpose": 9, "Div": 3, "Softmax": 3, "LayerNormalization": 5, "Erf": 1,
        "Gelu": 1, "ReduceMean": 1, "Gemm": 1,
    },
}  # fmt: skip

models = pytest.mark.parametrize("name", demo.MODELS)


def load(name: str) -> Any:
    return pytest.importorskip("onnx").load(demo.model_path(name))


def reference_run(name: str) -> Callable[[np.ndarray], np.ndarray]:
    reference = pytest.importorskip("onnx.reference")
    evaluator = reference.ReferenceEvaluator(load(name))
    return lambda images: evaluator.run(None, {"image": images})[0]


@models
def test_model_file_is_small(name: str) -> None:
    assert 0 < demo.model_path(name).stat().st_size < FILE_LIMIT_NBYTES


def test_unknown_model_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="digits_cnn, digits_transformer") as raised:
        demo.model_path("../secret")
    assert raised.value.name == "../secret"


def test_images_are_what_the_models_take() -> None:
    images, labels = demo.test_images()
    assert images.dtype == np.float32
    assert labels.dtype == np.int64
    assert images.shape == (len(labels), 1, 8, 8)
    assert len(labels) >= 360
    assert (images.min(), images.max()) == (0, 1)


def test_images_cover_the_classes_evenly() -> None:
    counts = np.bincount(demo.test_images()[1])
    assert len(counts) == 10
    assert counts.max() - counts.min() <= 2


def test_images_belong_to_the_caller() -> None:
    images, _ = demo.test_images()
    images[:] = 0
    assert demo.test_images()[0].max() == 1


@models
def test_model_passes_the_onnx_checker(name: str) -> None:
    model = load(name)
    pytest.importorskip("onnx.checker").check_model(model, full_check=True)
    assert model.ir_version <= 10
    [opset] = model.opset_import
    assert opset.domain == ""
    assert 17 <= opset.version <= 20


@models
def test_model_takes_any_batch(name: str) -> None:
    graph = load(name).graph
    [image], [probabilities] = graph.input, graph.output
    assert (image.name, probabilities.name) == ("image", "probabilities")
    assert [dim.dim_param or dim.dim_value for dim in image.type.tensor_type.shape.dim] == ["batch", 1, 8, 8]
    assert [dim.dim_param or dim.dim_value for dim in probabilities.type.tensor_type.shape.dim] == ["batch", 10]


@models
def test_model_holds_the_operators_it_is_there_for(name: str) -> None:
    counts = Counter(node.op_type for node in load(name).graph.node)
    assert not Counter(NODES[name]) - counts


@models
def test_reference_evaluator_is_accurate(name: str) -> None:
    images, labels = demo.test_images()
    probabilities = reference_run(name)(images)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    assert (probabilities.argmax(axis=1) == labels).mean() >= ACCURACY


@models
@pytest.mark.parametrize("batch", [1, 7])
def test_batch_does_not_change_a_result(name: str, batch: int) -> None:
    run = reference_run(name)
    images, _ = demo.test_images()
    np.testing.assert_allclose(run(images[:batch]), run(images[: 2 * batch])[:batch], atol=1e-5)


@models
def test_onnxruntime_agrees_with_the_reference(name: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    images, _ = demo.test_images()
    session = onnxruntime.InferenceSession(demo.model_path(name), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"image": images})[0], reference_run(name)(images), atol=1e-5)
