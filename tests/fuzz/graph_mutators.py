"""Mutations of files that graphpool reads: graphs in oneDNN's JSON, buffers to plan, traces of constants.

Each is a pure function ``(bytes, random.Random) -> bytes``: the same bytes and state give the same mutant. Most know
the structure of the file, so that what they change gets past the first check; the rest change bytes.
"""

from __future__ import annotations

import copy
import csv
import gzip
import io
import json
from typing import TYPE_CHECKING, Any

from graphpool.graph.schema import SCHEMAS

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

__all__ = ["mutate_bytes", "mutate_json", "mutate_knobs", "mutate_table"]

INT64_MIN = -(2**63)
SIZES = [0, 1, 2, 3, 7, 16, 17, 64, 255, 2**16, 2**31 - 1, 2**31, 2**40, 2**58, 2**59, 2**60, 2**62, 2**63 - 1, 2**63,
         2**64 - 1, 2**64, 10**30, -1, -2, -(2**31), INT64_MIN, INT64_MIN - 1]  # fmt: skip
FLOATS = [0.0, -0.0, 0.5, 1e-45, 1e308, -1e308, float("nan"), float("inf"), float("-inf")]
JUNK: list[Any] = [None, True, False, "", "f32", "any", "opaque", "\ud800", "\0", [], {}, [[]], {"a": []}, [2**31] * 12,
                   [0] * 13, [1e308], 3.0, "9" * 50, *SIZES, *FLOATS]  # fmt: skip
DTYPES = ["f64", "f32", "f16", "bf16", "f8_e5m2", "f8_e4m3", "s64", "s32", "s16", "s8", "s4", "u64", "u8", "u4",
          "boolean", "undef"]  # fmt: skip
SHAPES = [[], [0], [1], [2**59], [2**31, 2**31], [2**62], [0, 2**59], [2**20] * 3, [INT64_MIN], [INT64_MIN] * 3,
          [1] * 12, [1] * 13, [10**5] * 2, [0] * 4, [1024, 41], [2**59, 1]]  # fmt: skip
WEIGHT_IDS = [(fields << 14 | 1 << 8 | isa << 4 | kind) << 4 | 1
              for kind in range(2, 8) for isa in range(7) for fields in (0, 1, 5, 3 << 20, 1 << 42)]  # fmt: skip
LAYOUT_IDS = [0, 1, 16, 17, 18, 33, 2**64 - 1, *WEIGHT_IDS]
TOKENS = [b"NaN", b"-Infinity", b"1e999", b"\xff", b"\0", b"9" * 4500, b"[" * 3000, b'{"a":' * 2000, b'"', b",", b"\n",
          b"\r", b"\xed\xa0\x80"]  # fmt: skip
NUMBERS = [*map(str, SIZES), "", " 3", "3 ", "1_0", "+5", "0x10", "1e3", "1.5", "nan", "inf", "-inf", "\u0663",
           "\u00b2", "9" * 400, "9" * 5000, "-", "None", "1e308", "1e-320", "2-3", "0-9", "5-2", "1-2 4-5",
           "0-1 0-1"]  # fmt: skip
"""Of cells of tables."""


# ---- bytes


def mutate_bytes(data: bytes, rng: Random) -> bytes:
    """Bytes cut out, put in, turned round or repeated; another encoding; an end in the middle."""
    raw = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(raw) + 1)
        span = slice(at, at + rng.randint(0, 9))
        kind = rng.randrange(7)
        if kind == 0:
            raw[span] = rng.randbytes(rng.randint(0, 9))
        elif kind == 1 and raw:
            raw[at % len(raw)] ^= 1 << rng.randrange(8)
        elif kind == 2:
            raw[at:at] = rng.choice(TOKENS)
        elif kind == 3:
            raw[at:at] = raw[: rng.randint(0, 400)]
        elif kind == 4 and rng.random() < 0.3:
            del raw[at:]
        elif kind == 5:
            del raw[span]
        elif kind == 6 and rng.random() < 0.1:
            return _encode(bytes(raw), rng)
    return bytes(raw)


def _encode(data: bytes, rng: Random) -> bytes:
    """The same in another wrapping."""
    text = data.decode("utf-8", "replace")
    return rng.choice([gzip.compress(data, mtime=0), b"\xef\xbb\xbf" + data, b"", text.encode("utf-16"),
                       text.encode("utf-32"), text.encode("latin-1", "replace")])  # fmt: skip


# ---- graphs


def mutate_json(data: bytes, rng: Random) -> bytes:
    """A graph of which one to three things are changed; sometimes its bytes too."""
    try:
        content = json.loads(data)
        for _ in range(rng.randint(1, 3)):
            rng.choice(_GRAPH_MUTATIONS)(content, rng)
        data = json.dumps(content).encode()
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return mutate_bytes(data, rng)  # what was changed before left no graph to change
    return mutate_bytes(data, rng) if rng.random() < 0.1 else data


def _tensors(content: Any) -> list[Any]:
    return [tensor for op in content["graph"] for side in ("inputs", "outputs") for tensor in op[side]]


def _mentions(content: Any, rng: Random) -> list[Any]:
    """All mentions of one tensor, so that they still agree when all are changed; sometimes one of them."""
    tensor = rng.choice(_tensors(content))
    return [tensor] if rng.random() < 0.1 else [t for t in _tensors(content) if t["id"] == tensor["id"]]


def _replace_anything(content: Any, rng: Random) -> None:
    places: list[Any] = []

    def collect(value: Any) -> None:
        for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
            places.append((value, key))
            if isinstance(inner, (dict, list)):
                collect(inner)

    collect(content)
    container, key = rng.choice(places)
    if rng.random() < 0.3:
        del container[key]
    else:
        container[key] = copy.deepcopy(rng.choice(JUNK))


def _shape(content: Any, rng: Random) -> None:
    shape = [rng.randint(0, 9) for _ in range(rng.randint(0, 6))] if rng.random() < 0.7 else rng.choice(SHAPES)
    for tensor in _mentions(content, rng):
        tensor["shape"], tensor["stride"] = list(shape), [INT64_MIN]


def _dimension(content: Any, rng: Random) -> None:
    axis, size = rng.randrange(6), rng.choice(SIZES[:9]) if rng.random() < 0.6 else rng.choice(SIZES)
    for tensor in _mentions(content, rng):
        if tensor["shape"]:
            tensor["shape"][axis % len(tensor["shape"])] = size
            tensor["stride"] = [INT64_MIN]


def _strides(content: Any, rng: Random) -> None:
    for tensor in _mentions(content, rng):
        sizes = SIZES[:8] if rng.random() < 0.5 else SIZES
        tensor["stride"] = [rng.choice(sizes) for _ in tensor["shape"]]


def _dtype(content: Any, rng: Random) -> None:
    dtype = rng.choice(DTYPES)
    for tensor in _mentions(content, rng):
        tensor["dtype"] = dtype


def _layout(content: Any, rng: Random) -> None:
    """Opaque, as this or another processor might have chosen, with or without a size; any; undef."""
    layout, layout_id = rng.choice(["opaque", "opaque", "opaque", "any", "undef"]), rng.choice(LAYOUT_IDS)
    if rng.random() < 0.7:
        layout_id = 17
    nbytes = rng.choice(SIZES) if rng.random() < 0.2 else None
    for tensor in _mentions(content, rng):
        tensor.update(layout_type=layout, stride=[INT64_MIN])
        if layout == "opaque":
            tensor["layout_id"] = layout_id
        if nbytes is not None:
            tensor["nbytes"] = nbytes


def _property(content: Any, rng: Random) -> None:
    name = rng.choice(["undef", "constant", "variable", "host_scalar", "often"])
    for tensor in _mentions(content, rng):
        tensor["property_type"] = name


def _identity(content: Any, rng: Random) -> None:
    """Another id for all mentions of a tensor, or for an op."""
    number = rng.choice(SIZES)
    if rng.random() < 0.3:
        rng.choice(content["graph"])["id"] = number
        return
    for tensor in _mentions(content, rng):
        tensor["id"] = number


def _attribute(content: Any, rng: Random) -> None:
    attrs = rng.choice(content["graph"])["attrs"]
    if not attrs:
        return
    attribute = attrs[rng.choice(sorted(attrs))]
    numbers = SIZES if attribute["type"].startswith("s64") else [*FLOATS, 1.5, 2.0]
    if rng.random() < 0.5:
        numbers = [-1, 0, 1, 2, 3]
    if isinstance(attribute["value"], list):
        if rng.random() < 0.5 and attribute["value"]:
            attribute["value"][rng.randrange(len(attribute["value"]))] = rng.choice(numbers)
        else:
            attribute["value"] = [rng.choice(numbers) for _ in range(rng.randint(0, 6))]
    elif not isinstance(attribute["value"], str):
        attribute["value"] = rng.choice(numbers)


def _kind(content: Any, rng: Random) -> None:
    rng.choice(content["graph"])["kind"] = rng.choice(sorted(SCHEMAS))


def _rewire(content: Any, rng: Random) -> None:
    """An op reads some tensor of the graph instead: perhaps a cycle, perhaps another rank."""
    op = rng.choice(content["graph"])
    if op["inputs"]:
        op["inputs"][rng.randrange(len(op["inputs"]))] = copy.deepcopy(rng.choice(_tensors(content)))


def _repeat(content: Any, rng: Random) -> None:
    """An op twice, with the same ids or with others."""
    op = copy.deepcopy(rng.choice(content["graph"]))
    if rng.random() < 0.8:
        op["id"] += 10**6
    for tensor in op["outputs"] if rng.random() < 0.8 else ():
        tensor["id"] += 10**6
    content["graph"].append(op)


def _append(content: Any, rng: Random) -> None:
    """A Reorder or a ReLU behind a tensor, its result in a layout of its own."""
    source = rng.choice(_tensors(content))
    target = copy.deepcopy(source) | {"id": 2 * 10**6 + rng.randrange(1000), "property_type": "undef"}
    target.pop("nbytes", None)
    if rng.random() < 0.7:
        target |= {"layout_type": "opaque", "layout_id": rng.choice([17, rng.choice(LAYOUT_IDS)])}
    else:
        target.pop("layout_id", None)
        target |= {"layout_type": rng.choice(["strided", "any"])}
    target["stride"] = [INT64_MIN]
    kind = rng.choice(["Reorder", "Reorder", "ReLU"])
    number = 10**7 + rng.randrange(1000)
    content["graph"].append({"id": number, "name": "n", "kind": kind, "attrs": {}, "inputs": [copy.deepcopy(source)],
                             "outputs": [target]})  # fmt: skip


def _drop(content: Any, rng: Random) -> None:
    """A port, or an op, less."""
    if rng.random() < 0.3:
        content["graph"].pop(rng.randrange(len(content["graph"])))
        return
    side = rng.choice(content["graph"])[rng.choice(["inputs", "outputs"])]
    if side:
        side.pop(rng.randrange(len(side)))


_GRAPH_MUTATIONS: list[Callable[[Any, Random], None]] = [
    _replace_anything, _shape, _dimension, _strides, _dtype, _layout, _layout, _property, _identity, _attribute,
    _attribute, _kind, _rewire, _repeat, _append, _append, _drop,
]  # fmt: skip


def mutate_knobs(rng: Random, tensors: list[int], ops: list[int]) -> dict[str, str]:
    """Texts of one to three knobs, about these ids for the most part; some have their form."""
    texts = {}
    for _ in range(rng.randint(1, 3)):
        tensor, op = rng.choice([*tensors, 7777, 2**64]), rng.choice([*ops, 7777])
        dims = "x".join(str(rng.choice([*range(9), rng.choice(SIZES)])) for _ in range(rng.randint(1, 5)))
        tag = "".join(rng.sample("abcdef", rng.randint(0, 5)))
        name, text = rng.choice([
            ("in-shapes", f"{tensor}:{dims}"), ("in-shapes", f"{tensor}:{dims}*{tag}"), ("in-shapes", f"{tensor}:-"),
            ("in-shapes", f"{tensor}:*{dims}"), ("op-attrs", f"{op}:axis:{rng.choice(SIZES)}*strides:{dims}"),
            ("op-attrs", f"{op}:{rng.choice(['kernel', 'pads_end', 'scales', 'shape', 'axes', 'groups'])}:{dims}"),
            ("op-attrs", f"{op}:shape:2*abc"), ("dt", rng.choice(DTYPES)), ("dt", f"{tensor}:{rng.choice(DTYPES)}"),
            ("op-kind", f"{op}:{rng.choice(['undef', *sorted(SCHEMAS)])}"), ("mb", str(rng.choice(SIZES))),
            ("tensor-property", f"{tensor}:{rng.choice(['constant', 'host_scalar', 'x'])}"),
            ("attr-fpmath", rng.choice(["bf16", "bf16:true", "any:yes", ":"])),
            ("expected-n-partitions", str(rng.choice(SIZES))),
        ])  # fmt: skip
        texts[name] = (
            text if rng.random() < 0.9 else mutate_bytes(text.encode(), rng).decode("utf-8", "surrogateescape")
        )
    return texts


# ---- tables


def mutate_table(data: bytes, rng: Random) -> bytes:
    """A CSV file of which cells, rows and columns are changed, or its bytes."""
    try:
        rows = list(csv.reader(io.StringIO(data.decode(), newline="")))
    except (csv.Error, UnicodeDecodeError):
        rows = []
    if not rows or rng.random() < 0.2:
        return mutate_bytes(data, rng)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(rows)) if rng.random() < 0.9 else 0
        kind = rng.randrange(9)
        if kind < 4 and rows[at]:
            rows[at][rng.randrange(len(rows[at]))] = rng.choice(NUMBERS)
        elif kind == 4:
            rows.insert(at, list(rng.choice(rows)))
        elif kind == 5 and len(rows) > 1:
            rows.pop(at)
        elif kind == 6:
            rows[at] = rows[at][: rng.randint(0, 3)] if rng.random() < 0.5 else [*rows[at], rng.choice(NUMBERS)]
        elif kind == 7 and rows[0]:
            column = rng.randrange(len(rows[0]))
            value = rng.choice(NUMBERS)
            for row in rows[1:]:
                row[column : column + 1] = [value]
        elif kind == 8:
            rng.shuffle(rows[at] if rng.random() < 0.5 else rows)
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator=rng.choice(["\n", "\r\n", "\r"])).writerows(rows)
    return out.getvalue().encode()
