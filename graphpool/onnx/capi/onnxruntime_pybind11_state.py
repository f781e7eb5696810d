"""graphpool's exceptions by the names of ONNX Runtime's: what catches the latter catches what a session raises here.

`Fail`, `EPFail`, `EngineError` and `RuntimeException` are the base of all of graphpool's; for a missing file a session
raises Python's own `FileNotFoundError`.
"""

from graphpool.errors import GraphpoolError, InvalidArgumentError, StateError, UnsupportedError

__all__ = [
    "EPFail", "EngineError", "Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "ModelLoaded", "NoModel",
    "NoSuchFile", "NotImplemented", "RuntimeException",
]  # fmt: skip

Fail = EPFail = EngineError = RuntimeException = GraphpoolError
InvalidArgument = InvalidGraph = InvalidProtobuf = InvalidArgumentError
NoModel = ModelLoaded = StateError
NotImplemented = UnsupportedError  # noqa: A001 - the name is ONNX Runtime's
NoSuchFile = FileNotFoundError
