"""Random graphs and those that differed once: CPU backend, reference backend and oracle agree."""

import numpy as np
import pytest

from graphpool._kernels.eltwise import eltwise
from graphpool.backends.cpu.emit import elementwise
from tests.fuzz import differential
from tests.fuzz.cases import Case, Node, Source
from tests.fuzz.compare import difference
from tests.fuzz.expect import Expected
from tests.fuzz.generate import generate
from tests.fuzz.shrink import shrink
from tests.fuzz.thresholds import NUMBERS, around
from tests.oracle import KINDS

FIRST, CASES, BATCH = 500, 500, 25


@pytest.mark.parametrize("first", range(FIRST, FIRST + CASES, BATCH))
def test_random_graphs_agree(first):
    problems = {seed: difference(generate(seed)) for seed in range(first, first + BATCH)}
    assert {seed: problem for seed, problem in problems.items() if problem} == {}


@pytest.mark.parametrize("first", range(FIRST, FIRST + CASES // 2, BATCH))
def test_random_graphs_agree_on_numbers_that_are_not_finite(first):
    problems = {seed: difference(generate(seed, 0.05)) for seed in range(first, first + BATCH)}
    assert {seed: problem for seed, problem in problems.items() if problem} == {}


def _special_case(kind, contents, attrs):
    sources = {i: Source("f32", [1, 1, len(x)], {"how": "values", "values": x}) for i, x in enumerate(contents)}
    node = Node(kind, list(sources), [[9, "f32"]], attrs)
    return Case(0, sources, [node], {"policy": "fusion", "special": 0.5})


WINDOW = {"strides": [1], "dilations": [1], "data_format": "NCX", "weights_format": "OIX"}


@pytest.mark.parametrize(
    ("kind", "contents", "attrs", "free"),
    [
        ("Add", [[np.nan, np.inf, 1.0, 3e38], [1.0, -np.inf, 1.0, 3e38]], {}, [0, 0, 0, 0]),
        ("Convolution", [[1.0, 2.0, np.inf], [1.0, np.inf]], WINDOW | {"pads_begin": [1], "pads_end": [1]},
         [0, 0, 0, 1]),
        ("Convolution", [[1.0, 2.0, np.inf], [1.0, np.inf]], WINDOW | {"pads_begin": [0], "pads_end": [0]}, [0, 0]),
        ("Convolution", [[1.0, 3e38, 2.0, np.nan], [1.0]], WINDOW | {"pads_begin": [0], "pads_end": [0]},
         [0, 1, 0, 0]),
        ("BiasAddBackward", [[1.0, np.inf]], {"data_format": "NXC"}, [0, 0]),
    ],
)  # fmt: skip
def test_what_is_left_open(kind, contents, attrs, free):
    """Where padding meets an infinite weight, and where a sum may overflow, and nowhere else."""
    case = _special_case(kind, contents, attrs)
    assert Expected(case).free[9].ravel().astype(int).tolist() == free
    assert difference(case) is None


def test_infinities_that_narrow_types_alone_have_are_free_for_readers():
    sources = {0: Source("f16", [2], {"how": "values", "values": [60000.0, 1.0]})}
    nodes = [Node("Add", [0, 0], [[1, "f16"]]), Node("HardSwish", [1], [[2, "f16"]]), Node("Neg", [1], [[3, "f16"]])]
    expected = Expected(Case(0, sources, nodes, {"special": 0.5}))
    assert not expected.free[1].any()
    assert expected.free[3].tolist() == [True, False]


def test_a_number_in_place_of_an_infinity_is_found(monkeypatch):
    monkeypatch.setitem(KINDS, "Neg", lambda attrs, x: -x)
    case = _special_case("Neg", [[np.inf, np.nan, 1.0]], {})
    assert difference(case) is None
    monkeypatch.setitem(KINDS, "Neg", lambda attrs, x: np.where(np.isinf(x), 0.0, -x))
    assert "reference: Neg" in difference(case)
    monkeypatch.setitem(KINDS, "Neg", lambda attrs, x: np.where(np.isnan(x), 0.0, -x))
    assert "reference: Neg" in difference(case)


@pytest.mark.parametrize("path", differential.corpus(), ids=lambda path: path.stem)
def test_what_differed_once_agrees(path):
    assert difference(Case.load(path)) is None


def test_a_case_is_a_function_of_its_seed_and_survives_json():
    case = generate(7)
    assert case == generate(7)
    again = Case.from_json(case.to_json())
    assert again == case
    for i, x in case.inputs().items():
        assert x.tobytes() == again.inputs()[i].tobytes()


def test_cases_reach_the_kinds_and_the_thresholds():
    cases = [generate(seed) for seed in range(400)]
    assert len({node.kind for case in cases for node in case.nodes}) > 125
    assert {elementwise._LEAST_ELEMENTS, eltwise.TASK_SIZE, 65536} <= set(NUMBERS)
    sizes = {int(np.prod(source.shape)) for case in cases for source in case.sources.values()}
    assert len({size for size in sizes if size > 1000} & set(around(2**17))) > 5


def _wrong_case():
    """A graph in which the oracle is wrong about Tanh."""
    sources = {0: Source("f32", [4, 30], {"low": -2, "high": 2}), 1: Source("f32", [4, 30], {"low": -2, "high": 2})}
    nodes = [Node("Add", [0, 1], [[2, "f32"]]), Node("Tanh", [2], [[3, "f32"]]), Node("Abs", [3], [[4, "f32"]])]
    return Case(3, sources, nodes, {"policy": "fusion", "threads": 1, "strided": [0, 3], "inplace": True})


def test_a_wrong_result_is_found_and_made_small(monkeypatch):
    monkeypatch.setitem(KINDS, "Tanh", lambda attrs, x: np.tanh(x) * 1.01)
    problem = difference(_wrong_case())
    assert problem is not None
    assert problem.startswith("reference: Tanh: tensor 3, f32: ")
    small = shrink(_wrong_case(), problem)
    assert [node.kind for node in small.nodes] == ["Tanh"]
    assert small.options == {"policy": "fusion", "threads": 1}
    assert np.prod(small.sources[2].shape) <= 4


def test_a_small_error_of_the_cpu_backend_is_beyond_the_tolerance():
    """A thousandth is far more than rounding; a rounding error is not."""
    expected = Expected(_wrong_case())
    value = expected.values[4].astype(np.float64)
    tolerance = expected.tolerance(4)
    assert (tolerance < 1e-3 * np.abs(value) + 1e-6).all()
    assert (tolerance > 2.0**-24 * np.abs(value)).all()


def test_search_reports_what_differs(tmp_path, monkeypatch, capsys):
    """The work of the child process, here in this one."""
    monkeypatch.setitem(KINDS, "ReLU", lambda attrs, x: x)
    seed = next(s for s in range(100) if (difference(generate(s)) or "").startswith("reference: ReLU"))
    assert differential.main(["--work", str(seed), str(seed + 1), "--out", str(tmp_path)]) == 0
    [path] = differential.corpus(tmp_path)
    assert f"differ {seed} {path.name} reference: ReLU: tensor" in capsys.readouterr().out
    assert differential.main(["--replay", str(tmp_path)]) == 1


def test_search_runs_in_a_process_of_its_own(tmp_path, capsys):
    assert differential.main(["--count", "3", "--seed", "5", "--out", str(tmp_path)]) == 0
    assert "3 cases" in capsys.readouterr().out
