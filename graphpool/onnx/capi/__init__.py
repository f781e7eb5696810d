"""Where ONNX Runtime has its exceptions, for programs that catch them.

onnxruntime_pybind11_state.py  graphpool's exceptions by ONNX Runtime's names

Nothing is imported relative to the package above, since programs may know this one as ``onnxruntime.capi``.
"""

from . import onnxruntime_pybind11_state

__all__ = ["onnxruntime_pybind11_state"]
