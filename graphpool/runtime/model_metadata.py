"""What a file says of the model in it. Workers read it without the importer of such files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass

if TYPE_CHECKING:
    from .model_port import ModelPort


@dataclass(frozen=True)
class ModelMetadata:
    """What an ONNX file says of itself, under ONNX Runtime's names.

    Attributes
    ----------
    producer_name, graph_name, domain, description, graph_description : str
    version : int
    custom_metadata_map : dict of str to str
        Whatever the file's author put in.
    types : dict of str to str
        Inputs' and outputs' types, such as ``tensor(float)``; ``?`` where the file does not say.
    overridable : tuple of ModelPort
        Initialisers that the file lists as inputs too, and to which `graphpool.onnx.load` may be told to leave their
        content open (``as_inputs``); none before version 4 of ONNX's format, where all of them were listed.
    """

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]
    types: dict[str, str]
    overridable: tuple[ModelPort, ...] = ()
