"""Writes graphpool/onnx/op_table.py: what ONNX's operators take, by the package onnx that is installed.

python tools/make_op_table.py
"""

import json
from pathlib import Path

from onnx import defs

TARGET = Path(__file__).parent.parent / "graphpool" / "onnx" / "op_table.py"
MANY = 2**31 - 1
HEAD = '''"""What ONNX's operators take. Written by tools/make_op_table.py from the package onnx: do not edit."""

NEWEST = {newest}
"""Domain -> the newest opset that the table knows."""

OPS = """
{lines}
"""
"""Of each operator a line: domain, name, and for each version ``number:inputs:outputs:attributes``.

Inputs and outputs are the least and the largest number; the largest is left out where there is none, and ``?`` stands
behind a least number of inputs of which each may be without a name. Of an attribute there are name, a sign for its
type, and ``!`` if it has to be given. A version in which the operator is gone has ``-``.
"""
'''
SIGNS = {
    "FLOAT": "f", "INT": "i", "STRING": "s", "TENSOR": "t", "GRAPH": "g", "SPARSE_TENSOR": "x", "TYPE_PROTO": "y",
    "FLOATS": "F", "INTS": "I", "STRINGS": "S", "TENSORS": "T", "GRAPHS": "G", "SPARSE_TENSORS": "X",
    "TYPE_PROTOS": "Y",
}  # fmt: skip


def counts(least, most):
    return f"{least}-{'' if most >= MANY else most}"


def least_inputs(schema):
    """The least number of inputs, marked where none of them needs a name."""
    least = schema.inputs[: schema.min_input]
    are_optional = least and all(port.option == defs.OpSchema.FormalParameterOption.Optional for port in least)
    return f"{schema.min_input}{'?' if are_optional else ''}"


def version_of(schema):
    """What a version of an operator takes."""
    if schema.deprecated:
        return f"{schema.since_version}:-"
    attributes = [
        f"{name}={SIGNS[item.type.name]}{'!' if item.required else ''}"
        for name, item in sorted(schema.attributes.items())
    ]
    inputs = counts(least_inputs(schema), schema.max_input)
    outputs = counts(schema.min_output, schema.max_output)
    return f"{schema.since_version}:{inputs}:{outputs}:{','.join(attributes)}"


def table():
    """The text of the module."""
    found = {}
    for schema in defs.get_all_schemas_with_history():
        if schema.domain in ("", "ai.onnx.ml") and schema.support_level == defs.OpSchema.SupportType.COMMON:
            found.setdefault((schema.domain, schema.name), []).append(schema)
    lines = [
        " ".join([domain or "ai.onnx", name, *(version_of(s) for s in sorted(schemas, key=lambda s: s.since_version))])
        for (domain, name), schemas in sorted(found.items())
    ]
    newest = {domain: max(s.since_version for key, all_of in found.items() if key[0] == domain for s in all_of)
              for domain in ("", "ai.onnx.ml")}  # fmt: skip
    newest[""] = defs.onnx_opset_version()
    return HEAD.format(newest=json.dumps(newest), lines="\n".join(lines))


if __name__ == "__main__":
    TARGET.write_text(table())
