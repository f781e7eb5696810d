"""Two small trained models and the images that they never saw: for `graphpool demo`, examples, tests and benchmarks.

    digits_cnn.onnx            convolutions, batch normalisation, residual adds, pooling      (opset 17)
    digits_transformer.onnx    patches, two encoder blocks with decomposed attention, GELU    (opset 20)
    digits_test.npz            held-out handwritten digits and their labels

    model_path(name)           where a model lies; `MODELS` lists the names
    test_images()              the held-out images and labels

Both take ``image`` (batch, 1, 8, 8) float32 in 0..1 and give ``probabilities`` (batch, 10) float32. They are written
by ``python -m tools.train_digits``; docs/models.md says how. This package imports `errors` alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from graphpool.errors import InvalidArgumentError, brief, explain

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MODELS", "model_path", "test_images"]

MODELS = ("digits_cnn", "digits_transformer")
"""Names that `model_path` knows."""

_HERE = Path(__file__).resolve().parent


def model_path(name: str) -> Path:
    """Where the ONNX file of a demonstration model lies.

    Parameters
    ----------
    name : str
        One of `MODELS`.

    Returns
    -------
    path : pathlib.Path
        Absolute; read-only by convention, for it belongs to the installed package.

    Raises
    ------
    InvalidArgumentError
        No such model; the error carries ``name``.

    Notes
    -----
    Ownership: none. Threads: safe. Cost: no file is opened.

    Examples
    --------
    >>> model_path("digits_cnn").name
    'digits_cnn.onnx'
    """
    if name not in MODELS:
        raise InvalidArgumentError(
            explain("unknown demonstration model", accepted=", ".join(MODELS), got=brief(name)), name=name
        )
    return _HERE / f"{name}.onnx"


def test_images() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Handwritten digits that neither model was trained on, with what they show.

    Returns
    -------
    images : ndarray of shape (n, 1, 8, 8), float32
        Grey levels in 0..1, as the models want them.
    labels : ndarray of shape (n,), int64
        The digits, 0..9.

    Notes
    -----
    Ownership: the caller owns both arrays. Threads: safe. Cost: the file is read and decompressed at every call.
    Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI repository (CC BY 4.0), the
    part of it that scikit-learn ships as ``load_digits``; a fifth of each class.

    Examples
    --------
    >>> images, labels = test_images()
    >>> images.shape[1:], labels.min(), labels.max()
    ((1, 8, 8), np.int64(0), np.int64(9))
    """
    with np.load(_HERE / "digits_test.npz", allow_pickle=False) as data:
        return data["images"], data["labels"]
