"""Work and memory are bounded by tensors, whatever the attributes say, and results are right.

Every integer attribute of every kind is set to values that no loop could run to; windows are placed far apart, with
kernels, strides, dilations and pads up to 2**62, and compared with the definition in Python's integers.
"""

import faulthandler
import itertools
import resource
import sys
from pathlib import Path

import numpy as np
import pytest

import graphpool as gp
from graphpool.backends.reference.backend import run_ops
from graphpool.errors import GraphpoolError
from graphpool.graph.schema import SCHEMAS
from tests.cases.inputs import random_array
from tests.helpers.schema_cases import CASES, tensor

MOST_S, MOST_NBYTES = 120, 2 << 30
"""What one test may take before the process is given up, and what memory it may map."""


@pytest.fixture(autouse=True)
def bounds():
    """A hang ends the process instead of the patience of its users; a large allocation fails."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    faulthandler.dump_traceback_later(MOST_S, exit=True, file=sys.__stderr__)
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MOST_NBYTES, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="module")
def engine():
    with gp.Engine(threads=1, memory_limit="256MiB") as engine:
        yield engine


def run(engine, kind, inputs, outputs, attrs, arrays=None):
    """Results of one op and of the reference; random inputs unless `arrays` are given."""
    graph = gp.Graph("cpu")
    graph.add_op(gp.Op(0, kind, inputs, outputs, **attrs))
    graph.finalize()
    [partition] = graph.get_partitions()
    rng = np.random.default_rng(0)
    arrays = [random_array(lt, rng) for lt in inputs] if arrays is None else arrays
    ports = partition.output_ports
    with partition.compile(inputs, [lt.replace(shape=None) for lt in ports], engine) as compiled:
        tensors = [gp.Tensor(lt, engine, array) for lt, array in zip(inputs, arrays, strict=True)]
        results = [np.array(result.numpy()) for result in compiled.execute(gp.Stream(engine), tensors)]
    return results, run_ops(graph.ops, [lt.id for lt in inputs], {lt.id: None for lt in ports}, arrays)


# ---- every attribute

HUGE = [2**31, 2**40, 2**58, 2**62, 2**63 - 1]
HUGE += [-value for value in HUGE] + [-(2**63)]


def huge_attributes(kind):
    """The attributes of the minimal op with one of them huge, or one or all numbers of a list."""
    given = CASES[kind][0]
    for name, attribute in SCHEMAS[kind].attributes.items():
        if attribute.kind == "s64":
            yield from (given | {name: value} for value in HUGE)
        elif attribute.kind == "s64[]":
            default = (attribute.default or ())[:2]
            numbers = list(given.get(name) or default or (1,))
            for value, k in itertools.product(HUGE, range(len(numbers))):
                yield given | {name: [*numbers[:k], value, *numbers[k + 1 :]]}
            yield from (given | {name: [value] * len(numbers)} for value in HUGE)


def with_zeros(text, count):
    """A tensor of the schema cases whose first `count` dimensions are 0."""
    dtype, _, dims = text.partition(" ")
    sizes = [size for size in dims.split(",") if size]
    return f"{dtype} {','.join(['0'] * len(sizes[:count]) + sizes[count:])}"


KINDS = sorted(kind for kind in CASES if any(a.kind.startswith("s64") for a in SCHEMAS[kind].attributes.values()))


@pytest.mark.parametrize("kind", KINDS)
def test_every_attribute_is_refused_or_computed(engine, kind):
    _, sources, results = CASES[kind]
    for attrs in huge_attributes(kind):
        for zeros in (0, 1, 12):
            inputs = [tensor(with_zeros(text, zeros), k) for k, text in enumerate(sources)]
            inputs = [gp.LogicalTensor(one.id, one.dtype, one.shape) for one in inputs]
            outputs = [gp.LogicalTensor(100 + k, tensor(text, k).dtype) for k, text in enumerate(results)]
            try:
                found, expected = run(engine, kind, inputs, outputs, attrs)
            except GraphpoolError:
                continue
            for result, wanted in zip(found, expected, strict=True):
                assert result.shape == wanted.shape
                np.testing.assert_allclose(result.astype(float), wanted.astype(float), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("far", [5, 1000, 2**40, 2**62])
def test_pads_that_cut_off_what_they_added(engine, far):
    lt, y = gp.LogicalTensor(0, "f32", (4,)), gp.LogicalTensor(1, "f32")
    for begin, end in ((far, -far), (-far, far), (far, 1 - far), (2 - far, far)):
        attrs = {"pads_begin": [begin], "pads_end": [end], "value": 7.0}
        x = np.arange(4, dtype=np.float32)
        expected = [x[i] if 0 <= i < 4 else 7.0 for i in range(-begin, 4 + end)]
        for [result] in run(engine, "Pad", [lt], [y], attrs, [x]):
            assert result.tolist() == expected


# ---- windows

STEPS = [1, 2, 3, 1000, 2**16, 2**30, 2**40, 2**61]


def draw_axis(rng, kernels):
    """An axis (elements, outputs, kernel, stride, dilation, begin, end) on which at least one tap meets an element."""
    while True:
        n, m = (int(size) for size in rng.integers(1, 6, 2))
        kernel, stride, dilation = int(rng.choice(kernels)), int(rng.choice(STEPS)), int(rng.choice(STEPS))
        tap = min(int(rng.choice([0, 1, 2, kernel // 2, kernel - 1])), kernel - 1)
        begin = int(rng.integers(m)) * stride + tap * dilation - int(rng.integers(n))
        end = (m - 1) * stride + (kernel - 1) * dilation + 1 - n - begin
        if min(begin, end) >= 0 and max(begin, end) <= 2**62:
            return n, m, kernel, stride, dilation, begin, end


def meetings(axis):
    """(output, tap, element) wherever a tap meets an element, found without a loop over taps."""
    n, m, kernel, stride, dilation, begin, _ = axis
    found = []
    for output, element in itertools.product(range(m), range(n)):
        tap, rest = divmod(element + begin - output * stride, dilation)
        if rest == 0 and 0 <= tap < kernel:
            found.append((output, tap, element))
    return found


def geometry(axes):
    """Attributes of windows along the axes."""
    columns = list(zip(*axes, strict=True))
    names = ("strides", "dilations", "pads_begin", "pads_end")
    return dict(zip(names, map(list, columns[3:7]), strict=True))


def counted(axis, output, with_pads):
    """Taps of an output that its mean counts."""
    n, _, kernel, stride, dilation, begin, end = axis
    first = output * stride - begin
    least, stop = (-begin, n + end) if with_pads else (0, n)
    low = max(-((first - least) // dilation), 0)
    return max(min((stop - 1 - first) // dilation + 1, kernel) - low, 0)


def laid_out(array, data_format):
    return array if data_format == "NCX" else np.ascontiguousarray(np.moveaxis(array, 1, -1))


@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize("kind", ["MaxPool", "AvgPool", "AvgPool with pads"])
def test_pools(engine, kind, data_format):
    rng = np.random.default_rng(len(kind))
    for ndim, channels in itertools.product((1, 2, 3), (1, 2, 20)):
        for _ in range(12):
            axes = [draw_axis(rng, [1, 2, 3, 1000, 2**31 - 1, 2**40, 2**61]) for _ in range(ndim)]
            x = rng.normal(size=(2, channels, *(axis[0] for axis in axes))).astype(np.float32)
            dst = (2, channels, *(axis[1] for axis in axes))
            total = np.full(dst, -np.inf if kind == "MaxPool" else 0.0)
            for parts in itertools.product(*map(meetings, axes)):
                outputs, _, elements = zip(*parts, strict=True)
                value = x[(..., *elements)].astype(float)
                old = total[(..., *outputs)]
                total[(..., *outputs)] = np.maximum(old, value) if kind == "MaxPool" else old + value
            attrs = geometry(axes) | {"kernel": [axis[2] for axis in axes], "data_format": data_format}
            if kind != "MaxPool":
                if any(axis[4] > 1 for axis in axes):
                    continue  # AvgPool has no dilations
                attrs.pop("dilations")
                attrs["exclude_pad"] = kind == "AvgPool"
                counts = [[counted(axis, o, kind != "AvgPool") for o in range(axis[1])] for axis in axes]
                for place in np.ndindex(*dst[2:]):
                    cells = np.prod([float(row[o]) for row, o in zip(counts, place, strict=True)])
                    total[(..., *place)] /= max(cells, 1.0)
            own = laid_out(x, data_format)
            ports = [gp.LogicalTensor(0, "f32", own.shape)], [gp.LogicalTensor(1, "f32")]
            for [result] in run(engine, kind.split()[0], *ports, attrs, [own]):
                np.testing.assert_allclose(result, laid_out(total, data_format), rtol=1e-5, atol=1e-30)


CHANNELS = {"single": (1, 1, 1), "few": (3, 5, 1), "many": (20, 17, 1), "depthwise": (6, 6, 6), "grouped": (6, 4, 2)}
"""Input channels, output channels, groups."""


def places(axes):
    """All (outputs, taps, elements) that meet along all axes."""
    return [tuple(zip(*parts, strict=True)) for parts in itertools.product(*map(meetings, axes))]


@pytest.mark.parametrize("property", ["constant", "variable"])
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("kind", ["Convolution", "ConvTranspose"])
def test_convolutions(engine, kind, channels, data_format, property):
    """Of the same relation between elements, taps and outputs, a ConvTranspose reads the outputs."""
    rng = np.random.default_rng(len(channels))
    ic, oc, groups = CHANNELS[channels]
    transposed = kind == "ConvTranspose"
    for ndim in (1, 2, 2, 3) * 3:
        axes = [draw_axis(rng, [1, 2, 3]) for _ in range(ndim)]
        sizes, others = (tuple(axis[k] for axis in axes) for k in ((1, 0) if transposed else (0, 1)))
        kernel = tuple(axis[2] for axis in axes)
        x = rng.normal(size=(2, groups, ic // groups, *sizes)).astype(np.float32)
        w = rng.normal(size=(groups, oc // groups, ic // groups, *kernel)).astype(np.float32)
        expected = np.zeros((2, groups, oc // groups, *others))
        for outputs, taps, elements in places(axes):
            read, written = (outputs, elements) if transposed else (elements, outputs)
            terms = np.einsum("goi,ngi->ngo", w[(..., *taps)].astype(float), x[(..., *read)].astype(float))
            expected[(..., *written)] += terms
        weights = (
            w.swapaxes(1, 2).reshape(ic, oc // groups, *kernel) if transposed else w.reshape(oc, ic // groups, *kernel)
        )
        attrs = geometry(axes) | {"groups": groups, "data_format": data_format}
        attrs["weights_format"] = "IOX" if transposed else "OIX"
        arrays = [laid_out(x.reshape(2, ic, *sizes), data_format), np.ascontiguousarray(weights)]
        ports = [gp.LogicalTensor(0, "f32", arrays[0].shape)]
        ports += [gp.LogicalTensor(1, "f32", weights.shape, property=property)]
        wanted = laid_out(expected.reshape(2, oc, *others), data_format)
        for [result] in run(engine, kind, ports, [gp.LogicalTensor(2, "f32")], attrs, arrays):
            np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-4)
