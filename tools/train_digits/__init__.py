"""Train the two demonstration models on scikit-learn's handwritten digits: ``python -m tools.train_digits``.

    __main__.py    split, augmentation, training loop; writes graphpool/demo/*.onnx and digits_test.npz
    models.py      each architecture, once, as a function of an `Ops` interpreter
    autodiff.py    Training: the interpreter that computes with NumPy and differentiates in reverse
    export.py      OnnxWriter: the interpreter that writes ONNX nodes with the trained weights

A development tool: it needs scikit-learn (the images) and onnx, and neither is needed to use graphpool.
"""
