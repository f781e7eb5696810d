"""Workers that are started anew share the weights of one model: they map what was packed once."""

import multiprocessing
import os
import pickle

import numpy as np

import graphpool as gp
from graphpool.demo import model_path, test_images

images, labels = test_images()
batches = [images[k : k + 8] for k in range(0, 160, 8)]


def open_model(handle: gp.SharedModel) -> None:
    """Called once in each worker."""
    global model
    model = handle.open()


def answer(batch: np.ndarray) -> np.ndarray:
    """Called for each piece of work."""
    return model.run({"image": batch})["probabilities"].argmax(axis=1)


if __name__ == "__main__":
    # Workers inherit this: NumPy's BLAS would start threads in each, which spin beside the imports.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with gp.onnx.load(model_path("digits_cnn"), threads=1, shapes={"batch": (1, 8)}) as first:
        handle = gp.share(first)
    print(f"{len(pickle.dumps(handle))} bytes stand for {model_path('digits_cnn').stat().st_size}")

    context = multiprocessing.get_context("spawn")
    with context.Pool(2, initializer=open_model, initargs=(handle,)) as pool:
        found = np.concatenate(pool.map(answer, batches))
    print(f"{(found == labels[:160]).sum()} of {len(found)} right")
    assert (found == labels[:160]).mean() > 0.95
