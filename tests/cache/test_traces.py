import importlib.util
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphpool.cache import ConstantBuffer, ConstantTensorCache, Item, write_trace
from graphpool.cache.traces import clairvoyant, read_trace, replay
from graphpool.errors import InvalidArgumentError

NAMES = ["no_evict", "lru", "cost"]
SIZES = {"a": 3, "b": 5, "c": 7, "d": 11}
traces = st.lists(st.sampled_from("abcd"), max_size=40).map(
    lambda keys: [Item(k, SIZES[k], SIZES[k] + 1.0) for k in keys]
)


def load_tool(name):
    path = Path(__file__).parents[2] / "tools" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("policy", NAMES)
@given(trace=traces, capacity=st.integers(0, 30))
def test_no_policy_beats_the_bound_or_the_capacity(policy, trace, capacity):
    result, best = replay(trace, policy, capacity), clairvoyant(trace, capacity)
    assert result.hits + result.misses == len(trace)
    assert result.peak_nbytes <= capacity
    assert result.saved_cost <= best.bound_cost + 1e-9
    assert best.achievable_cost <= best.bound_cost + 1e-9
    assert best.bound_cost <= result.total_cost == best.total_cost


@given(trace=st.lists(st.sampled_from("abc"), max_size=7).map(lambda ks: [Item(k, SIZES[k], 1.0) for k in ks]))
def test_the_bounds_enclose_the_best_of_all_choices(trace):
    capacity = 8

    def best(i, kept):
        if i == len(trace):
            return 0.0
        item = trace[i]
        gain = item.cost if item.key in kept else 0.0
        options = kept | {item.key}
        subsets = itertools.chain.from_iterable(itertools.combinations(options, n) for n in range(len(options) + 1))
        fitting = [frozenset(s) for s in subsets if sum(SIZES[k] for k in s) <= capacity]
        return gain + max(best(i + 1, s) for s in fitting)

    optimum, bounds = best(0, frozenset()), clairvoyant(trace, capacity)
    assert bounds.achievable_cost <= optimum + 1e-9
    assert optimum <= bounds.bound_cost + 1e-9


@pytest.mark.parametrize("policy", NAMES)
@given(trace=traces, capacity=st.integers(1, 30))
def test_the_simulator_decides_as_the_cache_does(policy, trace, capacity):
    cache = ConstantTensorCache(capacity, policy=policy)
    for item in trace:
        cache.get_or_add(0, item.key, item.nbytes, lambda n=item.nbytes: ConstantBuffer(1, n), cost=item.cost)
    stats, result = cache.stats(), replay(trace, policy, capacity)
    assert (stats.hits, stats.misses) == (result.hits, result.misses)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75, 1.0])
def test_cost_is_never_far_below_the_better_of_the_others(share):
    for name, trace in load_tool("make_constant_traces").workloads(executions=100, seed=0).items():
        capacity = int(share * sum({item.key: item.nbytes for item in trace}.values()))
        saved = {policy: 100 * replay(trace, policy, capacity).saved_share for policy in NAMES}
        assert saved["cost"] >= max(saved["no_evict"], saved["lru"]) - 5, name


def test_the_models_have_the_sizes_of_their_papers():
    tool = load_tool("make_constant_traces")
    assert (len(tool.resnet50()), len(tool.bert_base())) == (54, 72)
    assert sum(item.nbytes for item in tool.resnet50()) == pytest.approx(102e6, rel=0.01)
    assert sum(item.nbytes for item in tool.bert_base()) == pytest.approx(340e6, rel=0.01)


def test_files_round_trip(tmp_path):
    trace = [Item("a", 3, 0.1), Item("b,\n", 2**40, 1e-9)]
    write_trace(tmp_path / "t.csv", trace)
    assert read_trace(tmp_path / "t.csv") == trace
    write_trace(tmp_path / "empty.csv", [])
    assert read_trace(tmp_path / "empty.csv") == []


ROWS = ["a,1", "a,1,x", "a,1,nan", "a,1,inf", "a,1,-1", "a,-1,1", "a,1.5,1", f"a,{2**62},1", f"a,1,{2**62}", "a,1,1,1",
        "a," + "9" * 5000 + ",1", "", "\xff", "x" * 200_000 + ",1,1"]  # fmt: skip


@pytest.mark.parametrize("text", ["", "a,b,c\n", "\xff", *(f"key,nbytes,cost\na,1,1\n{row}\n" for row in ROWS)])
def test_malformed_files_are_refused(tmp_path, text):
    (tmp_path / "t.csv").write_text(text, encoding="latin-1")
    with pytest.raises(InvalidArgumentError, match=r"line [23]|is no trace|behind line"):
        read_trace(tmp_path / "t.csv")


def test_sizes_and_capacities_beyond_64_bits():
    trace = [Item(key, 2**61, 1.0) for key in "abcabc"]
    for capacity in (2**62, 2**70):
        assert replay(trace, "lru", capacity).hits == (0 if capacity < 3 * 2**61 else 3)
        bounds = clairvoyant(trace, capacity)
        assert 0 < bounds.achievable_cost <= bounds.bound_cost <= 3


def test_an_empty_trace():
    assert replay([], "cost", 10).saved_share == 0
    assert clairvoyant([], 10) == (0, 0, 0)


@pytest.mark.parametrize("use", [lambda trace, size: replay(trace, "lru", size), clairvoyant])
@pytest.mark.parametrize(("trace", "size"), [(None, 8), ([3], 8), ([], None), ([], "much")])
def test_what_is_no_trace_or_no_size_is_refused(use, trace, size):
    with pytest.raises(InvalidArgumentError):
        use(trace, size)
