"""Small ONNX models, and their comparison with the reference evaluator of the onnx package."""

from dataclasses import dataclass, field

import numpy as np
from onnx import ValueInfoProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import graphpool as gp

TOLERANCE = {"float32": (2e-5, 2e-6), "float16": (4e-3, 4e-3), "float64": (1e-12, 1e-12)}
"""Relative and absolute, by the output's type; other types must be equal."""


def random_array(shape, dtype="float32", seed=0):
    """Normal numbers, or small integers."""
    rng = np.random.default_rng([seed, *shape])
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 5, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def peer_session(model):
    """A model in ONNX Runtime, which must be there; without a second thread, which would spin after each run."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def make_model(nodes, inputs, outputs, constants=(), *, opset=21, shapes=None, name="model"):
    """A model of nodes, of example inputs by name, output names, and constants by name.

    `shapes` replaces the examples' shapes in the model's declaration; outputs are declared by type and rank.
    """
    infos = [
        helper.make_tensor_value_info(
            key, helper.np_dtype_to_tensor_dtype(value.dtype), (shapes or {}).get(key, value.shape)
        )
        for key, value in inputs.items()
    ]
    results = [ValueInfoProto(name=key) for key in outputs]
    tensors = [numpy_helper.from_array(np.asarray(value), key) for key, value in dict(constants).items()]
    graph = helper.make_graph(nodes, name, infos, results, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    for result, value in zip(model.graph.output, ReferenceEvaluator(model).run(None, inputs), strict=True):
        elem_type = helper.np_dtype_to_tensor_dtype(np.asarray(value).dtype)
        result.type.CopyFrom(helper.make_tensor_type_proto(elem_type, [None] * np.ndim(value)))
    return model


def node_model(kind, inputs, *, constants=(), noutputs=1, opset=21, **attributes):
    """A model of one node; inputs whose index is in `constants` become initialisers, None leaves an input out."""
    names = ["" if value is None else f"x{k}" for k, value in enumerate(inputs)]
    outputs = [f"y{k}" for k in range(noutputs)]
    node = helper.make_node(kind, names, outputs, name=f"the_{kind}", **attributes)
    given = {n: v for k, (n, v) in enumerate(zip(names, inputs, strict=True)) if n and k not in constants}
    fixed = {n: v for k, (n, v) in enumerate(zip(names, inputs, strict=True)) if n and k in constants}
    return make_model([node], given, outputs, fixed, opset=opset), given


def check_against_evaluator(model, inputs):
    """Run on graphpool and on the evaluator, compare, and return how many partitions had no kernels of the CPU's."""
    expected = ReferenceEvaluator(model).run(None, inputs)
    with gp.onnx.load(model) as loaded:
        got = loaded.run(inputs)
        hosted = sum(not p.is_supported or p.backend.name != "cpu" for p in loaded.partitions)
    for result, wanted in zip(got.values(), expected, strict=True):
        assert_close(result, wanted)
    return hosted


def assert_close(result, wanted):
    """Equal types and shapes, and numbers within `TOLERANCE`."""
    wanted = np.asarray(wanted)
    assert result.dtype == wanted.dtype
    assert result.shape == wanted.shape
    rtol, atol = TOLERANCE.get(str(wanted.dtype), (0, 0))
    np.testing.assert_allclose(
        result.astype("float64"),
        wanted.astype("float64"),
        rtol=rtol,
        atol=atol * max(1, np.nanmax(np.abs(wanted), initial=0)),
    )


@dataclass
class ContributedCase:
    """A node of domain com.microsoft, which ONNX's evaluator does not know, and what NumPy expects of it.

    Inputs are arrays, or None where one is left out; `constants` are the numbers of those that are initialisers; None
    among the expected results leaves an output out.
    """

    kind: str
    inputs: list
    expected: list
    constants: tuple = ()
    attributes: dict = field(default_factory=dict)
    opset: int = 21

    def model(self):
        """The model and its inputs by name."""
        names = ["" if value is None else f"x{k}" for k, value in enumerate(self.inputs)]
        given = {name: np.asarray(value) for name, value in zip(names, self.inputs, strict=True) if name}
        fixed = {f"x{k}" for k in self.constants}
        outputs = ["" if value is None else f"y{k}" for k, value in enumerate(self.expected)]
        label = f"the_{self.kind}"
        node = helper.make_node(self.kind, names, outputs, label, domain="com.microsoft", **self.attributes)
        passed = {name: value for name, value in given.items() if name not in fixed}

        def info(name, value, shape):
            return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), shape)

        results = [(name, value) for name, value in zip(outputs, self.expected, strict=True) if name]
        graph = helper.make_graph(
            [node], "node", [info(name, value, value.shape) for name, value in passed.items()],
            [info(name, value, [None] * value.ndim) for name, value in results],
            [numpy_helper.from_array(given[name], name) for name in fixed],
        )  # fmt: skip
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10), passed

    def check(self, atol=0.0):
        """Compare graphpool, without a host, with what NumPy expects."""
        model, inputs = self.model()
        with gp.onnx.load(model, fallback=False) as loaded:
            self._compare(loaded.run(inputs).values(), atol=atol)

    def check_onnxruntime(self, rtol=0.0, atol=0.0, share=0.02):
        """Compare what NumPy expects with ONNX Runtime, which must be there."""
        model, inputs = self.model()
        self._compare(peer_session(model).run(None, inputs), rtol, atol, share)

    def _compare(self, results, rtol=0.0, atol=0.0, share=0.02):
        for result, wanted in zip(results, [value for value in self.expected if value is not None], strict=True):
            assert result.dtype == wanted.dtype
            assert result.shape == wanted.shape
            if wanted.dtype.kind in "iu":  # sums in another order may fall on the other side of a half
                differences = np.abs(result.astype(np.int64) - wanted.astype(np.int64))
                assert differences.max(initial=0) <= 1
                assert np.count_nonzero(differences) <= share * differences.size
            else:
                own_rtol, own_atol = TOLERANCE[str(wanted.dtype)]
                largest = max(1, np.abs(wanted, where=np.isfinite(wanted), out=np.zeros(wanted.shape)).max(initial=0))
                np.testing.assert_allclose(
                    result.astype("float64"), wanted.astype("float64"),
                    rtol=max(rtol, own_rtol), atol=max(atol, own_atol * largest),
                )  # fmt: skip
