"""The Open Inference Protocol, version 2, over REST with binary tensor data: requests into arrays, arrays into answers.

Pure functions of bytes: no network, no clock. What comes in is a stranger's; sizes are compared before anything is
made of them. Source: the protocol's specification, and its extension for binary tensor data.
"""

from __future__ import annotations

import json
import struct
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import dataclass

from ..cache._packed_file import as_bytes
from ..errors import InvalidArgumentError, InvalidDataTypeError, InvalidShapeError, brief, explain
from ..runtime.model_port import as_input, check_names
from ..typing import MAX_NDIM, DataType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..runtime.model_port import ModelPort

__all__ = ["Answer", "InferRequest", "describe_model", "describe_server", "format_answer", "parse_request"]

VERSION = "1"
"""The one version that each model has."""

MOST_JSON_NBYTES = 16 << 20
"""Of the JSON part of a request, which takes some ten times as much while it is parsed. Unit: bytes."""

NUMBER_NBYTES = 16
"""Of a number in JSON, about, while an answer is written."""

_MOST_CONTAINERS = 1 << 17
"""Lists and objects in it: an empty one takes 20 times its text."""

_MOST_ID_LENGTH = 256
_MOST_TIMEOUT_US = 10**12

_NAMES = {
    "boolean": "BOOL", "u8": "UINT8", "u16": "UINT16", "u32": "UINT32", "u64": "UINT64",
    "s8": "INT8", "s16": "INT16", "s32": "INT32", "s64": "INT64",
    "f16": "FP16", "bf16": "BF16", "f32": "FP32", "f64": "FP64",
}  # fmt: skip
_TEXT = "BYTES"
_BINARY_ONLY = ("FP16", "BF16")
"""What JSON has no form for, says the protocol."""


@dataclass(frozen=True)
class InferRequest:
    """A request that fits its model as far as names, types and ranks say.

    Attributes
    ----------
    id : str
        The client's; empty without one.
    inputs : dict of str to ndarray
        One for each input of the model.
    outputs : dict of str to bool
        The outputs to answer with, in order, and whether as binary data.
    timeout_s : float or None
        What the client wants to wait. Unit: seconds.
    """

    id: str
    inputs: dict[str, Any]
    outputs: dict[str, bool]
    timeout_s: float | None


@dataclass(frozen=True)
class Answer:
    """A body in parts, and the length of its JSON part where binary data follows. Unit: bytes."""

    parts: list[bytes | memoryview]
    json_nbytes: int | None

    @property
    def nbytes(self) -> int:
        """Of all parts. Unit: bytes."""
        return sum(map(len, self.parts))


# ---- metadata


def describe_server(version: str) -> dict[str, Any]:
    """What ``/v2`` answers."""
    return {"name": "graphpool", "version": version, "extensions": ["binary_tensor_data"]}


def describe_model(name: str, inputs: Sequence[ModelPort], outputs: Sequence[ModelPort]) -> dict[str, Any]:
    """What ``/v2/models/NAME`` answers; raises `InvalidArgumentError` for ports that the protocol has no name for."""
    sides = {"inputs": inputs, "outputs": outputs}
    described = {side: [_describe_port(port) for port in ports] for side, ports in sides.items()}
    return {"name": name, "versions": [VERSION], "platform": "onnx_graphpool", **described}


def _describe_port(port: ModelPort) -> dict[str, Any]:
    shape = [-1] if port.shape is None else [dim if isinstance(dim, int) else -1 for dim in port.shape]
    return {"name": port.name, "datatype": _datatype(port), "shape": shape}


def _datatype(port: ModelPort) -> str:
    found = _TEXT if port.is_text else _NAMES.get(str(port.dtype))
    if found is None:
        what = f"{port.name!r} of a model to be served"
        raise InvalidArgumentError(explain(what, accepted=f"a tensor of {', '.join(_NAMES)} or text", got=port.dtype))
    return found


# ---- requests


def parse_request(
    body: bytes | bytearray | memoryview,
    json_nbytes: str | None,
    inputs: Sequence[ModelPort],
    outputs: Sequence[ModelPort],
) -> InferRequest:
    """A request from the body of its message.

    Parameters
    ----------
    body : bytes-like
        Arrays of binary data may be views of it.
    json_nbytes : str or None
        The header ``Inference-Header-Content-Length``: how much of the body is JSON. None: all.
    inputs, outputs : sequence of ModelPort
        Those of the model.

    Returns
    -------
    request : InferRequest

    Raises
    ------
    InvalidArgumentError, InvalidDataTypeError, InvalidShapeError
        It is malformed, or does not fit the model; the message says where.
    """
    whole = memoryview(body)
    head_nbytes = _parse_length(json_nbytes, len(whole))
    document = _parse_json(whole[:head_nbytes])
    _check_keys("the request", document, ("id", "parameters", "inputs", "outputs"))
    request_id = document.get("id", "")
    if not isinstance(request_id, str) or len(request_id) > _MOST_ID_LENGTH:
        raise _error("id", f"a string of up to {_MOST_ID_LENGTH} characters", request_id)
    parameters = _parameters("the request", document, ("timeout", "binary_data_output"))
    return InferRequest(
        request_id,
        _parse_inputs(document.get("inputs"), whole[head_nbytes:], inputs),
        _parse_outputs(document.get("outputs"), _flag(parameters, "binary_data_output", False), outputs),
        _parse_timeout(parameters.get("timeout")),
    )


def _parse_length(text: str | None, nbytes: int) -> int:
    if text is None:
        return nbytes
    if not (text.isascii() and text.isdecimal() and len(text) < 16 and int(text) <= nbytes):
        raise _error("Inference-Header-Content-Length", f"a number of up to {nbytes} bytes, the body's", text)
    return int(text)


def _parse_json(text: memoryview) -> dict[str, Any]:
    if len(text) > MOST_JSON_NBYTES:
        hint = "send tensors as binary data"
        raise InvalidArgumentError(
            explain("JSON of a request", accepted=f"up to {MOST_JSON_NBYTES} bytes", got=len(text), hint=hint)
        )
    content = bytes(text)
    containers = content.count(b"[") + content.count(b"{")
    if containers > _MOST_CONTAINERS:
        hint = "send flat lists, or binary data"
        raise InvalidArgumentError(
            explain("brackets in a request", accepted=f"up to {_MOST_CONTAINERS}", got=containers, hint=hint)
        )
    try:
        found = json.loads(content.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:  # bytes that are no UTF-8 are a ValueError too
        raise InvalidArgumentError(explain("the request is no JSON", got=brief(error))) from None
    if not isinstance(found, dict):
        raise _error("the request", "a JSON object", found)
    return found


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON; send it as binary data")


def _check_keys(what: str, found: Mapping[str, Any], accepted: Sequence[str]) -> None:
    unknown = next((key for key in found if key not in accepted), None)
    if unknown is not None:
        raise _error(f"{what}: unknown member", ", ".join(accepted), unknown)


def _parameters(what: str, holder: Mapping[str, Any], accepted: Sequence[str]) -> dict[str, Any]:
    found = holder.get("parameters", {})
    if not isinstance(found, dict):
        raise _error(f"parameters of {what}", "a JSON object", found)
    _check_keys(f"parameters of {what}", found, accepted)
    return found


def _flag(parameters: Mapping[str, Any], name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise _error(name, "true or false", value)
    return value


def _parse_timeout(value: Any) -> float | None:
    if value is None:
        return None
    if type(value) is not int or not 0 < value <= _MOST_TIMEOUT_US:
        raise _error("parameter timeout", "microseconds, an integer above 0", value)
    return value / 1e6


def _entries(what: str, found: Any, accepted: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """Tensors of a request by name: objects with a name each, no two alike."""
    if not isinstance(found, list):
        raise _error(what, "a list of JSON objects", found)
    entries = []
    for entry in found:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise _error(f"entry of {what}", "a JSON object with a name", entry)
        name = brief(entry["name"])
        _check_keys(f"{name} of {what}", entry, accepted)
        entries.append((entry["name"], entry))
    if len(dict(entries)) < len(entries):
        raise _error(what, "names that differ", brief([name for name, _ in entries]))
    return entries


def _parse_outputs(found: Any, is_binary: bool, ports: Sequence[ModelPort]) -> dict[str, bool]:
    names = [port.name for port in ports]
    if found is None:
        return dict.fromkeys(names, is_binary)
    wanted = {}
    for name, entry in _entries("outputs", found, ("name", "parameters")):
        if name not in names:
            raise _error("name of an output", ", ".join(names), name)
        wanted[name] = _flag(_parameters(f"output {name!r}", entry, ("binary_data",)), "binary_data", is_binary)
    return wanted


def _parse_inputs(found: Any, binary: memoryview, ports: Sequence[ModelPort]) -> dict[str, Any]:
    entries = _entries("inputs", found, ("name", "shape", "datatype", "parameters", "data"))
    check_names(dict(entries), [port.name for port in ports])
    known = {port.name: port for port in ports}
    arrays, start = {}, 0
    for name, entry in entries:
        port = known[name]
        shape = _parse_shape(name, entry.get("shape"))
        if entry.get("datatype") != _datatype(port):
            message = explain(f"datatype of {name!r}", accepted=_datatype(port), got=brief(entry.get("datatype")))
            raise InvalidDataTypeError(message, input_name=name)
        nbytes = _parameters(f"input {name!r}", entry, ("binary_data_size",)).get("binary_data_size")
        if nbytes is None:
            array = _from_json(port, shape, entry.get("data"))
        else:
            left = len(binary) - start
            if "data" in entry or type(nbytes) is not int or not 0 <= nbytes <= left:
                raise _error(f"binary_data_size of {name!r}", f"up to the {left} bytes left, and no data", nbytes)
            array = _from_binary(port, shape, binary[start : start + nbytes])
            start += nbytes
        arrays[name] = as_input(port, array)
    if start != len(binary):
        raise _error("binary data", f"{start} bytes, as binary_data_size of the inputs says", len(binary))
    return {port.name: arrays[port.name] for port in ports}


def _parse_shape(name: str, found: Any) -> tuple[int, ...]:
    if (
        not isinstance(found, list)
        or len(found) > MAX_NDIM
        or not all(type(n) is int and 0 <= n < 2**63 for n in found)
    ):
        message = explain(f"shape of {name!r}", accepted=f"up to {MAX_NDIM} sizes, integers", got=brief(found))
        raise InvalidShapeError(message, input_name=name)
    return tuple(found)


def _from_binary(port: ModelPort, shape: tuple[int, ...], binary: memoryview) -> Any:
    if port.is_text:
        flat: Any = np.array(_read_texts(port, binary, prod(shape)), np.object_)
    else:
        dtype = _numpy(port)
        wanted = prod(shape) * dtype.itemsize
        if wanted != len(binary):
            what = f"binary_data_size of {port.name!r}"
            raise _error(what, f"{wanted}, for the shape {list(shape)}", len(binary))
        is_flag = port.dtype is DataType.BOOLEAN  # kernels see no bytes but 0 and 1
        flat = np.frombuffer(binary, np.uint8) != 0 if is_flag else np.frombuffer(binary, dtype)
    return _shaped(port, flat, shape)


def _read_texts(port: ModelPort, binary: memoryview, count: int) -> list[str]:
    """Texts, each behind its length in 4 bytes, the lowest first."""
    texts: list[str] = []
    start = 0
    if count * 4 > len(binary):
        raise _error(f"binary_data_size of {port.name!r}", f"at least {count * 4} for {count} texts", len(binary))
    while start < len(binary) and len(texts) < count:
        end = start + 4 + (struct.unpack_from("<I", binary, start)[0] if start + 4 <= len(binary) else 0)
        if end > len(binary) or start + 4 > len(binary):
            raise _error(f"text {len(texts)} of {port.name!r}", f"an end within {len(binary)} bytes", end)
        try:
            texts.append(str(binary[start + 4 : end], "utf-8"))
        except UnicodeDecodeError as error:
            raise _error(f"text {len(texts)} of {port.name!r}", "UTF-8", error.reason) from None
        start = end
    if start != len(binary) or len(texts) != count:
        raise _error(
            f"binary data of {port.name!r}", f"{count} texts in {len(binary)} bytes", f"{len(texts)} in {start}"
        )
    return texts


def _from_json(port: ModelPort, shape: tuple[int, ...], data: Any) -> Any:
    name = _datatype(port)
    if name in _BINARY_ONLY:
        raise _error(f"data of {port.name!r}", f"binary data, as for all of {name}", "JSON")
    flat = _flatten(port, shape, data)
    kinds = set(map(type, flat))
    if port.is_text:
        accepted: set[type] = {str}
    elif name == "BOOL":
        accepted = {bool}
    else:
        accepted = {int, float} if name.startswith("FP") else {int}
    if not kinds <= accepted:
        words = " or ".join(sorted(kind.__name__ for kind in accepted))
        got = ", ".join(sorted(kind.__name__ for kind in kinds))
        message = explain(f"data of {port.name!r}", accepted=f"{words}, for {name}", got=got)
        raise InvalidDataTypeError(message, input_name=port.name)
    try:
        if port.is_text:
            "".join(flat).encode()
        with np.errstate(over="raise"):
            array = np.array(flat, np.object_ if port.is_text else _numpy(port))
    except (OverflowError, FloatingPointError, UnicodeEncodeError):
        raise _error(f"data of {port.name!r}", f"values of {name}", "others") from None
    return _shaped(port, array, shape)


def _flatten(port: ModelPort, shape: tuple[int, ...], data: Any) -> list[Any]:
    """The elements of a flat list, or of lists that are nested as the shape is."""
    if not isinstance(data, list):
        raise _error(f"data of {port.name!r}", "a list, or parameters with binary_data_size", data)
    level = data
    if data and isinstance(data[0], list):
        level = [data]
        for size in shape:
            if any(type(part) is not list or len(part) != size for part in level):
                raise _error(
                    f"data of {port.name!r}", f"lists nested as the shape {list(shape)}, or a flat one", "others"
                )
            level = list(chain.from_iterable(level))
    if len(level) != prod(shape):
        raise _error(f"data of {port.name!r}", f"{prod(shape)} elements, for {list(shape)}", f"{len(level)}")
    return level


def _shaped(port: ModelPort, flat: Any, shape: tuple[int, ...]) -> Any:
    try:
        return flat.reshape(shape)
    except ValueError:  # no elements, and sizes beyond what an address reaches
        message = explain(f"shape of {port.name!r}", accepted="one that an array can have", got=list(shape))
        raise InvalidShapeError(message, input_name=port.name) from None


def _numpy(port: ModelPort) -> np.dtype[Any]:
    assert port.dtype is not None  # checked by `_datatype`
    return port.dtype.numpy


def _error(what: str, accepted: str, got: object) -> InvalidArgumentError:
    text = got if isinstance(got, str) and len(got) < 80 else brief(got)
    return InvalidArgumentError(explain(what, accepted=accepted, got=text))


# ---- answers


def format_answer(name: str, request: InferRequest, results: Mapping[str, Any]) -> Answer:
    """The answer to a request.

    Parameters
    ----------
    name : str
        Of the model.
    request : InferRequest
    results : mapping of str to ndarray
        The outputs of the run.

    Returns
    -------
    answer : Answer
        Its parts may be views of the results.

    Raises
    ------
    InvalidArgumentError
        A result has no form in JSON, such as NaN, or is as long as no request may be, and was not asked for as binary
        data; or it is no tensor.
    """
    binary: list[bytes | memoryview] = []
    outputs = []
    for output, is_binary in request.outputs.items():
        array = results[output]
        described: dict[str, Any] = {"name": output, **_describe_array(output, array)}
        if is_binary:
            part = _texts_as_binary(array) if array.dtype == np.object_ else as_bytes(np.ascontiguousarray(array))
            described["parameters"] = {"binary_data_size": len(part)}
            binary.append(part)
        else:
            described["data"] = _as_json(output, described["datatype"], array)
        outputs.append(described)
    document: dict[str, Any] = {"model_name": name, "model_version": VERSION, "outputs": outputs}
    if request.id:
        document["id"] = request.id
    head = json.dumps(document, separators=(",", ":")).encode()
    return Answer([head, *binary], len(head) if binary else None)


def _describe_array(name: str, array: Any) -> dict[str, Any]:
    if isinstance(array, np.ndarray):
        datatype = _TEXT if array.dtype == np.object_ else _NAMES.get(DataType.parse(array.dtype))
        if datatype is not None:
            return {"datatype": datatype, "shape": list(array.shape)}
    raise _error(f"result {name!r}", "a tensor of a type that the protocol has", type(array).__name__)


def _texts_as_binary(array: Any) -> bytes:
    texts = [str(text).encode() for text in array.flat]
    return b"".join(chain.from_iterable((struct.pack("<I", len(text)), text) for text in texts))


def _as_json(name: str, datatype: str, array: Any) -> list[Any]:
    hint = "ask for it with binary_data"
    if datatype in _BINARY_ONLY:
        raise InvalidArgumentError(explain(f"result {name!r} is {datatype}, which JSON has no form for", hint=hint))
    most = MOST_JSON_NBYTES // NUMBER_NBYTES
    if array.size > most:
        what = f"elements of result {name!r} in JSON"
        raise InvalidArgumentError(explain(what, accepted=f"up to {most}", got=array.size, hint=hint))
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InvalidArgumentError(
            explain(f"result {name!r} has numbers that JSON has not: NaN or infinity", hint=hint)
        )
    found: list[Any] = array.reshape(-1).tolist()
    return found
