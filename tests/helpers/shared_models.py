"""A model with weights worth sharing, and what its workers do; importable by processes that are started anew."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

import graphpool as gp
from tests.helpers.onnx_models import make_model, random_array

ROOT = Path(__file__).parents[2]
ROWS, K, N = 3, 300, 400
X = random_array((ROWS, K))
PARAMS = {"w": random_array((K, N)), "v": random_array((N, K), seed=1), "table": random_array((1000, K), seed=2)}
PACKED_NBYTES = PARAMS["w"].nbytes + PARAMS["v"].nbytes


def make_products(rows=ROWS):
    """Two products whose weights are packed, and a table that a kernel reads as it is."""
    nodes = [
        helper.make_node("Gather", ["table", "places"], ["rows"]),
        helper.make_node("Add", ["x", "rows"], ["sum"]),
        helper.make_node("MatMul", ["sum", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    shapes = {"x": (rows, K), "places": (rows,)}
    return make_model(nodes, inputs(0), ["y"], PARAMS, shapes=shapes, name="products")


def inputs(number):
    """Inputs that differ from number to number."""
    return {"x": X + np.float32(number), "places": (np.arange(ROWS, dtype=np.int64) * 7 + number) % 1000}


def save_products(path, rows=ROWS, *, external=False):
    """The model in a file; with its weights in another one beside it, if so told."""
    options = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0} if external else {}
    onnx.save(make_products(rows), path, **options)
    return path


def expected(number):
    """What the model gives, to the accuracy of its kernels."""
    given = inputs(number)
    hidden = np.maximum((given["x"] + PARAMS["table"][given["places"]]) @ PARAMS["w"], 0)
    return hidden @ PARAMS["v"]


def is_right(result, number):
    return np.allclose(result, expected(number), rtol=1e-3, atol=1e-1)


def open_and_run(handle, number=0):
    """What a worker does: whether the result is right, and how much of the budget constants take."""
    with handle.open() as model:
        result = model.run(inputs(number))["y"]
        return is_right(result, number), model.engine.budget.holdings()["constants"]


OPEN_PICKLE = """
import pickle, sys
import graphpool as gp
from tests.helpers.shared_models import open_and_run
try:
    print(open_and_run(pickle.loads(bytes.fromhex(sys.argv[1]))))
except gp.StateError as error:
    print("StateError", error)
"""


def open_elsewhere(text):
    """What a process that was started anew says of a pickled handle."""
    own = {name: value for name, value in os.environ.items() if name.startswith("GRAPHPOOL_")}
    command = [sys.executable, "-W", "error", "-c", OPEN_PICKLE, text.hex()]
    environment = own | {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def share_and_wait(path, connection, store=None):
    """In a process of its own: load, share, send the pickled handle, and serve until the other end is closed."""
    with gp.onnx.load(path, threads=1) as model:
        connection.send_bytes(pickle.dumps(gp.share(model, store=store)))
        serve(model, connection)


def serve(model, connection):
    """Answer each number with whether the result for it is right."""
    try:
        while True:
            number = connection.recv()
            connection.send(is_right(model.run(inputs(number))["y"], number))
    except EOFError:
        pass
