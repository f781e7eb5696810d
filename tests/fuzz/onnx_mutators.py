"""Mutates ONNX models, field by field and byte by byte: a function from seed and number to bytes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import onnx
from google.protobuf.descriptor import FieldDescriptor

from tests.fuzz.mutate_bytes import mutate_bytes
from tests.fuzz.onnx_seeds import ROWS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.message import Message

NUMBERS = [0, 1, 2, 3, 4, 5, 7, 8, 13, 22, 64, 255, 1000, -1, -2, -3, -7, 2**15, 2**31 - 1, 2**31, 2**32 + 1, 2**40,
           2**62, 2**63 - 1, -(2**31), -(2**63)]  # fmt: skip
REALS = [0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e30, -1e30, 3e9, float("nan"), float("inf"), float("-inf")]
TEXTS = ["", "x0", "y0", "x", "y", "ai.onnx", "com.microsoft", "ai.onnx.ml", "NOTSET", "SAME_UPPER", "VALID",
         "linear", "cubic", "reflect", "edge", "max", "i,j->", "...i,i...->...", "é" * 3, "n" * 300, "\0"]  # fmt: skip
OTHERS = ["Bernoulli", "Constant", "If", "Loop", "NonZero", "Optional", "OptionalGetElement", "Scan", "SequenceAt",
          "SplitToSequence", "StringConcat", "Unique"]  # fmt: skip
KINDS = sorted({*OTHERS, *(row[0] for row in ROWS)})
MOST_FIELDS = 4
"""Changed in one mutant."""

INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def mutant(seeds: Sequence[bytes], seed: int, number: int) -> bytes:
    """The mutant of that number."""
    rng = random.Random(f"{seed}:{number}")
    raw = rng.choice(seeds)
    if rng.random() < 0.05:
        return mutate_bytes(raw, rng)
    model = onnx.ModelProto.FromString(raw)
    pool = _messages(model)
    for _ in range(rng.choice([1, 1, 1, 2, 2, MOST_FIELDS])):
        _mutate_field(rng.choice(_weighted(pool, rng)), pool, rng)
        pool = _messages(model)
    raw = model.SerializeToString(deterministic=True)
    return mutate_bytes(raw, rng) if rng.random() < 0.03 else raw


def _messages(model: Message) -> list[Message]:
    """The message and all inside."""
    found, waiting = [], [model]
    while waiting:
        message = waiting.pop()
        found.append(message)
        for field, value in message.ListFields():
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                waiting += value if field.is_repeated else [value]
    return found


def _weighted(pool: list[Message], rng: random.Random) -> list[Message]:
    """The messages of one kind, so that rare kinds are met as often as others."""
    kind = rng.choice(sorted({type(message).__name__ for message in pool}))
    return [message for message in pool if type(message).__name__ == kind]


def _mutate_field(message: Message, pool: list[Message], rng: random.Random) -> None:
    """Change a field, one that is set more often than not."""
    present = [field for field, _ in message.ListFields()]
    field = rng.choice(present if present and rng.random() < 0.8 else list(message.DESCRIPTOR.fields))
    if field.is_repeated:
        _mutate_repeated(message, field, pool, rng)
    elif rng.random() < 0.15:
        message.ClearField(field.name)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        getattr(message, field.name).CopyFrom(_message(getattr(message, field.name), pool, rng))
    else:
        setattr(message, field.name, _scalar(field, getattr(message, field.name), pool, rng))


def _mutate_repeated(message: Message, field: Any, pool: list[Message], rng: random.Random) -> None:
    values: Any = getattr(message, field.name)
    is_message = field.type == FieldDescriptor.TYPE_MESSAGE
    action = rng.choice(["delete", "double", "change", "change", "swap", "clear", "add"])
    at = rng.randrange(len(values)) if len(values) else 0
    if action in ("add", "double") or not len(values):
        if is_message:
            new = values.add()
            new.CopyFrom(values[at] if action == "double" else _message(new, pool, rng))
        else:
            values.append(values[at] if action == "double" and len(values) else _scalar(field, None, pool, rng))
    elif action == "delete":
        del values[at]
    elif action == "clear":
        del values[:]
    elif action == "swap" and not is_message:
        other = rng.randrange(len(values))
        values[at], values[other] = values[other], values[at]
    elif is_message:
        values[at].CopyFrom(_message(values[at], pool, rng))
    else:
        values[at] = _scalar(field, values[at], pool, rng)


def _message(like: Message, pool: list[Message], rng: random.Random) -> Message:
    """A copy of another message of the same kind, or an empty one."""
    same = [message for message in pool if type(message) is type(like) and message is not like]
    found = type(like)()
    if same and rng.random() < 0.9:
        found.CopyFrom(rng.choice(same))
    return found


def _scalar(field: Any, old: Any, pool: list[Message], rng: random.Random) -> Any:
    kind = field.cpp_type
    if kind in INTEGERS:
        least, most = INTEGERS[kind]
        near = [] if old is None else [old + rng.choice([-1, 1]), old * 2, -old]
        return min(max(rng.choice([*NUMBERS, *near * 4]), least), most)
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return rng.choice(REALS)
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return rng.choice(field.enum_type.values).number
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if field.type == FieldDescriptor.TYPE_BYTES:
        return mutate_bytes(old or b"abc", rng)
    return _text(field, pool, rng)


def _text(field: Any, pool: list[Message], rng: random.Random) -> str:
    """A name: of an op, of something else in the model, or any."""
    if field.name == "op_type":
        return rng.choice(KINDS)
    names = [name for node in pool if isinstance(node, onnx.NodeProto) for name in (*node.input, *node.output)]
    names += [attribute.name for attribute in pool if isinstance(attribute, onnx.AttributeProto)]
    names += [tensor.name for tensor in pool if isinstance(tensor, onnx.TensorProto)]
    return rng.choice([*TEXTS, *names * 3])
