"""The service as a public client of the protocol sees it."""

import warnings

import numpy as np
import pytest

import graphpool as gp
from graphpool import demo

pytest.importorskip("onnx")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from tests.helpers.serving import running

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what it imports
    client_of = pytest.importorskip("tritonclient.http", reason="the package tritonclient[http] is not installed")

IMAGES = demo.test_images()[0]


@pytest.fixture(scope="module")
def served():
    with gp.onnx.load(demo.model_path("digits_cnn"), threads=1) as model, running({"cnn": model}) as service:
        client = client_of.InferenceServerClient(f"127.0.0.1:{service.port}")
        yield client, model
        client.close()


def test_health_and_metadata(served):
    client, _ = served
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("cnn")
    assert not client.is_model_ready("none")
    assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
    assert client.get_model_metadata("cnn", "1")["outputs"][0]["datatype"] == "FP32"


@pytest.mark.parametrize("sends_binary", [False, True], ids=["json in", "binary in"])
@pytest.mark.parametrize("wants_binary", [False, True], ids=["json out", "binary out"])
def test_results_are_those_of_the_model(served, sends_binary, wants_binary):
    client, model = served
    given = client_of.InferInput("image", [5, 1, 8, 8], "FP32")
    given.set_data_from_numpy(IMAGES[:5], binary_data=sends_binary)
    wanted = client_of.InferRequestedOutput("probabilities", binary_data=wants_binary)
    answer = client.infer("cnn", [given], outputs=[wanted], request_id="r7", timeout=20_000_000)
    np.testing.assert_array_equal(answer.as_numpy("probabilities"), model.run({"image": IMAGES[:5]})["probabilities"])
    assert answer.get_response()["id"] == "r7"


def test_results_without_a_list_of_outputs(served):
    client, model = served
    given = client_of.InferInput("image", [1, 1, 8, 8], "FP32")
    given.set_data_from_numpy(IMAGES[:1])
    found = client.infer("cnn", [given]).as_numpy("probabilities")
    np.testing.assert_array_equal(found, model.run({"image": IMAGES[:1]})["probabilities"])


def test_errors_carry_the_reason(served):
    client, _ = served
    given = client_of.InferInput("picture", [1, 1, 8, 8], "FP32")
    given.set_data_from_numpy(IMAGES[:1])
    with pytest.raises(client_of.InferenceServerException, match="input 'image' is missing"):
        client.infer("cnn", [given])
