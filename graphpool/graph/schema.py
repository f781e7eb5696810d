"""The schemas of all op kinds, by name: the one door to ``graphpool.graph.schemas``.

A further table of kinds is a module of rows like ``schemas/onednn.py``, named in `TABLES`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from graphpool.errors import InvalidOpError, brief, explain

from .schemas import extension, onednn
from .schemas.attributes import Attribute
from .schemas.model import OpSchema, Port, closest

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["EXTENSIONS", "SCHEMAS", "TABLES", "Attribute", "OpSchema", "Port", "get_schema"]

EXTENSIONS = extension.TABLE
"""Rows of the kinds that are defined as ONNX's ops of their names."""

TABLES = (onednn.TABLE, EXTENSIONS)
"""Tables of rows; a kind stands in one of them only."""

SCHEMAS: Mapping[str, OpSchema] = MappingProxyType({row.kind: row for table in TABLES for row in table})
"""Kind -> schema, in the order of the tables. Read-only."""


def get_schema(kind: str) -> OpSchema:
    """The schema of an op kind.

    Parameters
    ----------
    kind : str
        oneDNN's spelling, or ONNX's for the extensions, such as ``"MatMul"``.

    Returns
    -------
    schema : OpSchema

    Raises
    ------
    InvalidOpError
        There is no such kind; the message names the closest ones.

    Examples
    --------
    >>> get_schema("ReLU").category
    'Element-wise, one input'
    """
    schema = SCHEMAS.get(kind)
    if schema is None:
        hint = closest(str(kind), tuple(SCHEMAS))
        raise InvalidOpError(
            explain("unknown op kind", accepted=f"one of {len(SCHEMAS)} kinds", got=brief(kind), hint=hint),
            op_kind=kind,
        )
    return schema
