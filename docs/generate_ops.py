"""Write docs/reference/ops.md, the reference page of all op kinds, from the op table and what registers its kinds.

    python docs/generate_ops.py [PATH]

Deterministic: the same table gives the same bytes.
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from graphpool.backends.cpu.support import ANCHORS, INSTRUCTIONS, RULES
from graphpool.backends.reference import registered_kinds
from graphpool.graph.schema import SCHEMAS
from graphpool.graph.schemas.model import format_counts
from graphpool.onnx.ops import direct

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphpool.graph.schema import Attribute, OpSchema, Port

HEADER = """# Operations

Every kind that a graph may hold, generated from the op table by `docs/generate_ops.py`. A type variable stands for one
data type: ports that share it agree. An ONNX op that is named is the kind itself; [further ones](onnx.md) are written
in several kinds. Dimensions are spatial unless they are batch or channels; `NXC` keeps channels
last and is the default, as in oneDNN.
"""


def _prose(text: str | None) -> str:
    """A docstring as one paragraph."""
    return " ".join((text or "").split())


def _ports(ports: tuple[Port, ...], counts: frozenset[int] | range) -> str:
    names = ", ".join(f"`{port.name}`: {port.type}" for port in ports)
    if counts == {len(ports)}:
        return names or "none"
    return f"{names} ({format_counts(counts)} of them)"


def _default(attribute: Attribute) -> str:
    value = attribute.default
    if attribute.required:
        return "required"
    if value is None:
        return "absent"
    if isinstance(value, tuple) and len(value) > 1 and len(set(value)) == 1:
        return f"all {value[0]}"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _attributes(schema: OpSchema) -> Iterator[str]:
    if not schema.attributes:
        return
    yield from ("", "| Attribute | Kind | Default | Accepted |", "|---|---|---|---|")
    for item in schema.attributes.values():
        accepted = ", ".join(f"`{choice}`" for choice in item.choices) or item.accepted
        yield f"| `{item.name}` | {item.kind} | {_default(item)} | {accepted} |"


def _runs(kind: str) -> str:
    """Who computes a kind."""
    if kind in INSTRUCTIONS:
        return "in elementwise programs of the CPU backend, and as a post-op"
    if kind in RULES:
        return "by kernels of the CPU backend" + (", with post-ops" if kind in ANCHORS else "")
    return "on the reference backend" if kind in registered_kinds() else "nowhere"


def _names(title: str, names: list[str]) -> Iterator[str]:
    if names:
        yield f"- {title}: {', '.join(f'`{name}`' for name in names)}"


def _section(schema: OpSchema) -> Iterator[str]:
    yield from ("", f"### {schema.kind}", "", schema.doc, "")
    yield f"- Inputs: {_ports(schema.inputs, schema.input_counts)}"
    yield f"- Outputs: {_ports(schema.outputs, schema.output_counts)}"
    for name, types in schema.types.items():
        yield f"- {name}: {', '.join(sorted(types)) or 'every type'}"
    yield f"- Shape: {_prose(schema.infer.__doc__)}"
    for check in schema.checks:
        yield f"- Rule: {_prose(check.__doc__)}"
    for a, b in schema.commutative:
        yield f"- `{schema.inputs[a].name}` and `{schema.inputs[b].name}` may be swapped."
    yield f"- Runs: {_runs(schema.kind)}"
    stem = schema.kind.replace("Forward", "") + "Backward"
    yield from _names("Gradients", [kind for kind in SCHEMAS if kind.startswith(stem)])
    yield from _names("In ONNX", [op for op, kind in direct.KINDS.items() if kind == schema.kind])
    if schema.differences:
        yield f"- Unlike oneDNN: {schema.differences}"
    yield from _attributes(schema)


def generate(path: Path) -> None:
    """Write the page to `path`; its folder is made if need be."""
    lines = [HEADER.rstrip()]
    for category, schemas in groupby(SCHEMAS.values(), key=lambda schema: schema.category):
        lines += ["", f"## {category}"]
        for schema in schemas:
            lines += _section(schema)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "reference" / "ops.md")
