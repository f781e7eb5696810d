"""Bytes of requests into arrays, and results into bytes: what the protocol says, and what strangers send."""

import json
import random
import struct
import tracemalloc

import numpy as np
import pytest

import graphpool as gp
from graphpool.runtime.model_port import ModelPort
from graphpool.serve.protocol import MOST_JSON_NBYTES, describe_model, format_answer, parse_request
from graphpool.typing import DataType

X = ModelPort("x", DataType.F32, ("batch", 2))
Y = ModelPort("y", DataType.F32, ("batch", 3))
NUMPY = {
    "boolean": ("BOOL", bool), "u8": ("UINT8", np.uint8), "u16": ("UINT16", np.uint16), "u32": ("UINT32", np.uint32),
    "u64": ("UINT64", np.uint64), "s8": ("INT8", np.int8), "s16": ("INT16", np.int16), "s32": ("INT32", np.int32),
    "s64": ("INT64", np.int64), "f16": ("FP16", np.float16), "f32": ("FP32", np.float32), "f64": ("FP64", np.float64),
}  # fmt: skip


def entry(port="x", shape=(1, 2), datatype="FP32", **more):
    return {"name": port, "shape": list(shape), "datatype": datatype, **more}


def parse(document, inputs=(X,), outputs=(Y,)):
    return parse_request(json.dumps(document).encode(), None, inputs, outputs)


def parse_binary(document, binary, inputs=(X,), outputs=(Y,)):
    head = json.dumps(document).encode()
    return parse_request(head + binary, str(len(head)), inputs, outputs)


# ---- what is accepted


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("is_binary", [False, True], ids=["json", "binary"])
def test_tensors_come_through_whole(dtype, is_binary):
    name, kind = NUMPY[dtype]
    if name == "FP16" and not is_binary:
        pytest.skip("JSON has no form for FP16, says the protocol")
    port = ModelPort("x", DataType(dtype), (None, 3))
    array = np.array([[0, 1, 2], [3, 4, 100]]).astype(kind)
    if is_binary:
        binary = array.tobytes()
        document = {"inputs": [entry(shape=(2, 3), datatype=name, parameters={"binary_data_size": len(binary)})]}
        request = parse_binary(document, binary, (port,), (port,))
    else:
        request = parse({"inputs": [entry(shape=(2, 3), datatype=name, data=array.tolist())]}, (port,), (port,))
    assert request.inputs["x"].dtype == kind
    np.testing.assert_array_equal(request.inputs["x"], array)
    request.outputs["x"] = is_binary
    answer = format_answer("m", request, {"x": array})
    head = json.loads(answer.parts[0])
    [output] = head["outputs"]
    assert (head["model_name"], output["datatype"], output["shape"]) == ("m", name, [2, 3])
    if is_binary:
        assert answer.json_nbytes == len(answer.parts[0])
        assert bytes(answer.parts[1]) == array.tobytes()
        assert output["parameters"] == {"binary_data_size": array.nbytes}
    else:
        assert answer.json_nbytes is None
        np.testing.assert_array_equal(np.array(output["data"], kind), array.ravel())


@pytest.mark.parametrize("data", [[1, 2, 3, 4], [[1, 2], [3, 4]]], ids=["flat", "nested"])
def test_data_may_be_nested(data):
    found = parse({"inputs": [entry(shape=(2, 2), data=data)]}).inputs["x"]
    np.testing.assert_array_equal(found, [[1, 2], [3, 4]])


def test_texts_come_through_whole():
    port = ModelPort("t", None, ("n",), is_text=True)
    texts = ["", "a\0b", "Grüße"]
    binary = b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)
    given = entry("t", (3,), "BYTES", parameters={"binary_data_size": len(binary)})
    request = parse_binary({"inputs": [given], "parameters": {"binary_data_output": True}}, binary, (port,), (port,))
    assert request.inputs["t"].tolist() == texts
    assert format_answer("m", request, request.inputs).parts[1] == binary
    assert parse({"inputs": [entry("t", (3,), "BYTES", data=texts)]}, (port,)).inputs["t"].tolist() == texts


def test_flags_are_zero_or_one_whatever_the_bytes():
    port = ModelPort("x", DataType.BOOLEAN, (4,))
    given = entry(shape=(4,), datatype="BOOL", parameters={"binary_data_size": 4})
    found = parse_binary({"inputs": [given]}, b"\0\1\2\xff", (port,)).inputs["x"]
    assert found.view(np.uint8).tolist() == [0, 1, 1, 1]


def test_members_of_a_request():
    document = {"id": "a", "inputs": [entry(data=[1, 2])], "parameters": {"timeout": 1500000}, "outputs": [
        {"name": "y", "parameters": {"binary_data": True}}]}  # fmt: skip
    request = parse(document)
    assert (request.id, request.timeout_s, request.outputs) == ("a", 1.5, {"y": True})
    answer = json.loads(format_answer("m", request, {"y": np.ones((1, 3), np.float32)}).parts[0])
    assert answer["id"] == "a"


def test_metadata_says_unknown_sizes_as_the_protocol_does():
    described = describe_model("m", [X], [ModelPort("z", DataType.S64, None)])
    assert described["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]
    assert described["outputs"] == [{"name": "z", "datatype": "INT64", "shape": [-1]}]
    with pytest.raises(gp.InvalidArgumentError, match="'x' of a model to be served"):
        describe_model("m", [ModelPort("x", DataType.S4, (1,))], [])


# ---- what is refused

BAD = {
    "no JSON": (b"{", "no JSON"),
    "no UTF-8": (b"\xff\xfe", "no JSON"),
    "deep": (b"[" * 100_000, "no JSON"),
    "many lists": (b"[" + b"[]," * 200_000 + b"[]]", "brackets in a request"),
    "no object": (b"[]", "a JSON object"),
    "NaN": (b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[NaN,1]}]}', "NaN is no number of JSON"),
    "long number": (b'{"id":' + b"1" * 10_000 + b"}", "no JSON"),
    "too long": (b" " * (MOST_JSON_NBYTES + 1), "JSON of a request"),
}


@pytest.mark.parametrize("case", BAD)
def test_bodies_that_are_refused(case):
    body, words = BAD[case]
    with pytest.raises(gp.InvalidArgumentError, match=words):
        parse_request(body, None, (X,), (Y,))


GOOD = {"inputs": [entry(data=[1, 2])]}
WRONG = {
    "unknown member": (GOOD | {"extra": 1}, "unknown member"),
    "id": (GOOD | {"id": 7}, "id; accepted: a string"),
    "parameters": (GOOD | {"parameters": []}, "parameters of the request"),
    "unknown parameter": (GOOD | {"parameters": {"path": "x"}}, "unknown member"),
    "timeout": (GOOD | {"parameters": {"timeout": -1}}, "timeout"),
    "no inputs": ({}, "inputs; accepted: a list"),
    "missing input": ({"inputs": []}, "input 'x' is missing"),
    "unknown input": ({"inputs": [entry(data=[1, 2]), entry("z", data=[1, 2])]}, "unknown input 'z'"),
    "input twice": ({"inputs": [entry(data=[1, 2])] * 2}, "names that differ"),
    "no name": ({"inputs": [{"shape": [1, 2]}]}, "with a name"),
    "datatype": ({"inputs": [entry(datatype="FP64", data=[1, 2])]}, "datatype of 'x'; accepted: FP32"),
    "shape type": ({"inputs": [entry(shape=(1.5, 2), data=[1, 2])]}, "shape of 'x'"),
    "negative shape": ({"inputs": [entry(shape=(-1, 2), data=[1, 2])]}, "shape of 'x'"),
    "rank": ({"inputs": [entry(shape=(1,) * 99, data=[1])]}, "shape of 'x'"),
    "rank of the model": ({"inputs": [entry(shape=(2,), data=[1, 2])]}, "input 'x': rank 1"),
    "fixed size": ({"inputs": [entry(shape=(1, 3), data=[1, 2, 3])]}, "dimension 1 is 3"),
    "few data": ({"inputs": [entry(data=[1])]}, "2 elements"),
    "huge shape": ({"inputs": [entry(shape=(2**62, 2), data=[1])]}, "elements, for"),
    "empty huge shape": ({"inputs": [entry(shape=(0, 2**62), data=[])]}, "shape of 'x'"),
    "ragged": ({"inputs": [entry(shape=(2, 2), data=[[1, 2], [3]])]}, "lists nested"),
    "kind": ({"inputs": [entry(data=[1, "2"])]}, "data of 'x'; accepted: float or int"),
    "flag": ({"inputs": [entry(data=[1, True])]}, "data of 'x'; accepted: float or int"),
    "large number": ({"inputs": [entry(data=[1, 1e300])]}, "values of FP32"),
    "no data": ({"inputs": [entry()]}, "data of 'x'; accepted: a list"),
    "shared memory": ({"inputs": [entry(parameters={"shared_memory_region": "r"})]}, "unknown member"),
    "unknown output": (GOOD | {"outputs": [{"name": "z"}]}, "name of an output; accepted: y"),
    "binary_data": (GOOD | {"outputs": [{"name": "y", "parameters": {"binary_data": 1}}]}, "binary_data"),
    "binary size": ({"inputs": [entry(parameters={"binary_data_size": 8})]}, "up to the 0 bytes left"),
}


@pytest.mark.parametrize("case", WRONG)
def test_requests_that_are_refused(case):
    document, words = WRONG[case]
    with pytest.raises(gp.InvalidArgumentError) as caught:
        parse(document)
    assert words in str(caught.value)


@pytest.mark.parametrize(("stated", "sent"), [(4, 4), (8, 9), (16, 16), (8, 4), (-1, 8), (2**70, 8)])
def test_sizes_of_binary_data_agree(stated, sent):
    with pytest.raises(gp.InvalidArgumentError, match="binary"):
        parse_binary({"inputs": [entry(parameters={"binary_data_size": stated})]}, bytes(sent))


@pytest.mark.parametrize("text", ["-1", "1e1", "", "99", "9" * 5000, "\u0663"])
def test_length_of_the_json_part(text):
    with pytest.raises(gp.InvalidArgumentError, match="Inference-Header-Content-Length"):
        parse_request(b"{}", text, (X,), (Y,))


@pytest.mark.parametrize("binary", [b"\1\0\0", b"\xff\xff\xff\xff", b"\1\0\0\0\xff", b"\0\0\0\0\0"])
def test_malformed_texts(binary):
    port = ModelPort("t", None, ("n",), is_text=True)
    given = entry("t", (1,), "BYTES", parameters={"binary_data_size": len(binary)})
    with pytest.raises(gp.InvalidArgumentError):
        parse_binary({"inputs": [given]}, binary, (port,))


def test_results_without_a_form_in_json():
    request = parse(GOOD)
    with pytest.raises(gp.InvalidArgumentError, match="NaN or infinity; ask for it with binary_data"):
        format_answer("m", request, {"y": np.full((1, 3), np.nan, np.float32)})
    with pytest.raises(gp.InvalidArgumentError, match="FP16"):
        format_answer("m", request, {"y": np.zeros((1, 3), np.float16)})
    many = np.broadcast_to(np.float32(0), (1025, 1024))
    with pytest.raises(gp.InvalidArgumentError, match="up to 1048576; got: 1049600; ask for it with binary_data"):
        format_answer("m", request, {"y": many})


# ---- random and mutated requests

PORTS = (X, ModelPort("n", DataType.S64, ("batch",)), ModelPort("t", None, ("batch",), is_text=True))


def sample():
    """A good request with binary and plain data, as its JSON part and its binary part."""
    text = struct.pack("<I", 2) + b"ab"
    document = {
        "id": "q", "parameters": {"timeout": 1000, "binary_data_output": True},
        "inputs": [
            entry(parameters={"binary_data_size": 8}), entry("n", (1,), "INT64", data=[7]),
            entry("t", (1,), "BYTES", parameters={"binary_data_size": len(text)}),
        ],
        "outputs": [{"name": "y", "parameters": {"binary_data": False}}],
    }  # fmt: skip
    return json.dumps(document).encode(), np.ones(2, np.float32).tobytes() + text


def attempt(body, length):
    """Parse; whatever is wrong is an error of the right type, and what passes fits the model."""
    try:
        request = parse_request(body, length, PORTS, (Y,))
    except gp.InvalidArgumentError:
        return False
    assert [*request.inputs] == [port.name for port in PORTS]
    assert request.inputs["x"].dtype == np.float32
    assert request.inputs["n"].dtype == np.int64
    return True


PIECES = [
    b"-1",
    b"1e999",
    b"99999999999999999999",
    b"null",
    b"{}",
    b"[]",
    b'""',
    b"true",
    b"[[1],[2,3]]",
    b"\\ud800",
    b",",
]


@pytest.mark.parametrize("seed", range(20))
def test_mutated_requests_are_parsed_or_refused(seed):
    rng = random.Random(seed)
    head, binary = sample()
    assert attempt(head + binary, str(len(head)))
    for _ in range(300):
        body = bytearray(head + binary)
        for _ in range(rng.randint(1, 4)):
            start = rng.randrange(len(body))
            change = rng.randrange(4)
            if change == 0:
                body[start] = rng.randrange(256)
            elif change == 1:
                del body[start : start + rng.randint(1, 9)]
            elif change == 2:
                body[start:start] = rng.choice(PIECES)
            else:
                body[start : start + rng.randint(1, 5)] = rng.choice(PIECES)
        attempt(bytes(body), rng.choice([None, str(len(head)), str(rng.randrange(len(body) + 9))]))


@pytest.mark.parametrize("seed", range(5))
def test_random_bytes_are_refused(seed):
    rng = random.Random(seed)
    for _ in range(200):
        body = rng.randbytes(rng.randrange(400))
        assert not attempt(body, rng.choice([None, "0", str(rng.randrange(500))]))


def test_a_small_body_takes_little_memory():
    bodies = [
        {"inputs": [entry(shape=(2**40, 2), parameters={"binary_data_size": 2**43})]},
        {"inputs": [entry(shape=(2**40, 2), data=[1])]},
        {"inputs": [entry("t", (2**40,), "BYTES", parameters={"binary_data_size": 0})]},
    ]
    tracemalloc.start()
    try:
        for document in bodies:
            assert not attempt(json.dumps(document).encode(), None)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
