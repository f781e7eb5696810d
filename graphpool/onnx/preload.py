"""What it takes to open models of ONNX files, for a fork server to import once for all its processes.

    multiprocessing.set_forkserver_preload(["graphpool.onnx.preload"])

Needs the package onnx.
"""

from .loader import importer

importer()
