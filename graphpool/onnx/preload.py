"""What it takes to open models of ONNX files, for a fork server to import once for all its processes.

    multiprocessing.set_forkserver_preload(["graphpool.onnx.preload"])

Needs the package onnx.
"""

from graphpool.backends.reference import registered_kinds
from graphpool.runtime import shared_model  # noqa: F401  (what handles of shared models are made by)
from graphpool.runtime.stored_forms import build_name

from .loader import importer

importer()
registered_kinds()
build_name()  # looks at each file of the package: of the code that is imported here, which all processes will run
