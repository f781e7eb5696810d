"""What a file may ask for: one record of bounds, checked before anything is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ._dataclasses import dataclass
from .errors import InvalidArgumentError, LimitError, brief, explain

if TYPE_CHECKING:
    from typing import Any

__all__ = ["Limits"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds on what the content of a file makes the library do. The defaults are for files that are trusted.

    Attributes
    ----------
    file_nbytes : int, default=16 MiB
        Length of a graph in oneDNN's JSON form. Unit: bytes.
    nodes : int, default=250,000
        Nodes of a model or graph: with those of nested graphs, after functions are expanded, and after loops are
        unrolled. Each takes some kilobytes outside of any ``memory_limit``.
    unrolled_nodes : int, default=4096
        Nodes that one Loop or Scan may become, nested ones included, where it does not run as a model of its own.
    depth : int, default=32
        Graphs inside one another, and functions that call one another.
    rank : int, default=32
        Dimensions of a tensor in the file.
    items : int, default=16,777,216
        Numbers or strings of one attribute.
    text_nbytes : int, default=256 MiB
        All strings of one attribute together; the words of decision trees (``nodes_modes``) count as numbers. Unit:
        bytes.
    folded_nbytes : int, default=1 GiB
        What nodes that are computed when the model is loaded may make, beyond the size of the constants in the file.
        A ``memory_limit`` lowers it to a quarter of itself. Larger results are computed when the model runs, in memory
        that is planned. Also the size of a table that stands for an op. Unit: bytes.
    pattern_length : int, default=1024
        Characters of a regular expression.
    host_steps : int, default=10,000,000
        Nodes that host functions evaluate in one run, each iteration of a loop anew, and inner steps of one node; and
        trips of loops whose bodies kernels run.
    host_deadline_s : float, default=600.0
        What host functions, or such loops, may take in one run. Looked at between nodes and between iterations, of
        loops that kernels run every twentieth of a second. Unit: seconds.

    Raises
    ------
    InvalidArgumentError
        A bound is no number above 0.

    Notes
    -----
    Threads: immutable, safe. `dataclasses.replace` makes a record with other values.

    Examples
    --------
    >>> from graphpool import Limits
    >>> Limits(nodes=1000).nodes
    1000
    >>> Limits.strict().nodes < Limits().nodes
    True
    """

    file_nbytes: int = 16 << 20
    nodes: int = 250_000
    unrolled_nodes: int = 4096
    depth: int = 32
    rank: int = 32
    items: int = 1 << 24
    text_nbytes: int = 256 << 20
    folded_nbytes: int = 1 << 30
    pattern_length: int = 1024
    host_steps: int = 10_000_000
    host_deadline_s: float = 600.0

    def __post_init__(self) -> None:
        for name, annotation in type(self).__annotations__.items():
            value = getattr(self, name)
            kinds = (int, np.integer, float) if annotation == "float" else (int, np.integer)
            if not isinstance(value, kinds) or isinstance(value, bool) or not value > 0:
                raise InvalidArgumentError(explain(f"limit {name}", accepted="a number above 0", got=brief(value)))
            object.__setattr__(self, name, value if isinstance(value, float) else int(value))

    @classmethod
    def strict(cls) -> Limits:
        """Bounds for files from strangers, which load in seconds or are refused.

        Returns
        -------
        Limits
        """
        return cls(
            file_nbytes=4 << 20, nodes=20_000, unrolled_nodes=1024, depth=8, rank=12, items=1 << 16,
            text_nbytes=1 << 16, folded_nbytes=16 << 20, pattern_length=128, host_steps=100_000, host_deadline_s=10.0,
        )  # fmt: skip

    def check(self, name: str, asked: float, what: str, node: str | None = None) -> None:
        """Raise unless `asked` is within the bound `name`.

        Parameters
        ----------
        name : str
            A field.
        asked : int or float
        what : str
            What asks, for the message.
        node : str, optional
            The node that asks.

        Raises
        ------
        LimitError
            It is not.
        """
        if asked > getattr(self, name):
            raise self.error(name, asked, what, node)

    def error(self, name: str, asked: float, what: str, node: str | None = None) -> LimitError:
        """The error for a bound that does not hold.

        Parameters
        ----------
        name : str
            Which limit.
        asked : float
            What was asked for.
        what : str
            What asked for it, in words.
        node : str, optional
            The node that it belongs to.

        Returns
        -------
        error : LimitError
            To be raised by the caller.
        """
        value: Any = getattr(self, name)
        message = explain(
            f"{what} exceeds the limit {name}", accepted=f"at most {value}", got=asked,
            hint=f"if you trust the file, raise it: limits=graphpool.Limits({name}=...)"
            + (", and memory_limit, if it is lower because of that" if name == "folded_nbytes" else ""),
        )  # fmt: skip
        return LimitError(message, limit=name, value=value, asked=asked, node=node)
