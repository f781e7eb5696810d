"""What it takes to open models of ONNX files, for a fork server to import once for all its processes.

    multiprocessing.set_forkserver_preload(["graphpool.onnx.preload"])

Needs the package onnx.
"""

from graphpool.runtime import host_device  # noqa: F401 - engines import it when they are made

from .loader import importer

importer()
