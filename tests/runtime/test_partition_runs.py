"""Host functions between programs: as few interruptions as a greedy order finds, and the same results."""

import random
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

import graphpool as gp
from graphpool.runtime import Model
from graphpool.runtime.model_form import ModelForm
from graphpool.runtime.model_port import ModelPort
from graphpool.runtime.partition_runs import gather
from graphpool.runtime.scheduling import POLICIES
from graphpool.typing import DataType
from tests.helpers.tower_model import share_always


@dataclass(frozen=True)
class Part:
    """What is looked at of a partition."""

    backend: object
    reads: tuple
    writes: tuple

    @property
    def input_ports(self):
        return [SimpleNamespace(id=i) for i in self.reads]

    @property
    def output_ports(self):
        return [SimpleNamespace(id=i) for i in self.writes]


def parts(*rows):
    """Partitions from ("cpu" or None, numbers of those read)."""
    return [Part(backend, tuple(sources), (number,)) for number, (backend, *sources) in enumerate(rows)]


def runs(partitions):
    return 1 + sum(a.backend is not b.backend for a, b in pairwise(partitions))


def numbers(partitions):
    return [partition.writes[0] for partition in partitions]


def test_host_functions_of_branches_wait_for_one_another():
    branches = parts(
        ("cpu",), (None, 0), ("cpu", 1), ("cpu",), (None, 3), ("cpu", 4), ("cpu", 2, 5), (None, 6)
    )  # fmt: skip
    assert runs(branches) == 6
    gathered = gather(branches)
    assert numbers(gathered) == [0, 3, 1, 4, 2, 5, 6, 7]
    assert runs(gathered) == 4


def test_host_functions_in_front_come_first():
    assert numbers(gather(parts(("cpu",), (None,), ("cpu", 1), ("cpu", 0)))) == [1, 0, 2, 3]


def test_an_order_without_interruptions_stays():
    chain = parts(("cpu",), ("cpu",), ("cpu", 0), (None, 2, 1), ("cpu", 3))
    assert gather(chain) == chain
    assert gather([]) == []


@pytest.mark.parametrize("seed", range(100))
def test_orders_are_topological_and_have_no_more_interruptions(seed):
    rng = random.Random(seed)
    given = parts(*(
        (rng.choice(["cpu", "cpu", "other", None]), *(u for u in range(max(0, v - 6), v) if rng.random() < 0.3))
        for v in range(rng.randint(1, 40))
    ))  # fmt: skip
    gathered = gather(given)
    assert sorted(numbers(gathered)) == numbers(given)
    position = {number: k for k, number in enumerate(numbers(gathered))}
    assert all(position[u] < position[part.writes[0]] for part in gathered for u in part.reads)
    assert runs(gathered) <= runs(given)


def interrupted(shapes, values):
    """Three branches of softmax, two of which pass through a host function."""
    graph, hosts, ends = gp.Graph("cpu"), {}, []
    tensors = iter(gp.LogicalTensor(k, "f32", (96, 64)) for k in range(2, 99))
    ids = iter(range(99))

    def op(kind, source, **attrs):
        result, number = next(tensors), next(ids)
        graph.add_op(gp.Op(number, kind, [source], [result], **attrs))
        if kind == "Wildcard":
            hosts[number] = lambda inputs, outputs: [3 * inputs[0]]
        return result

    x, y = gp.LogicalTensor(0, "f32", (96, 64)), gp.LogicalTensor(1, "f32", (96, 192))
    for branch in range(3):
        head = op("SoftMax", op("SoftMax", x, axis=-1), axis=0)
        middle = head if branch == 1 else op("Wildcard", head)
        ends.append(op("SoftMax", op("SoftMax", middle, axis=-1), axis=0))
    graph.add_op(gp.Op(next(ids), "Concat", ends, [y], axis=1))
    graph.finalize()
    return ModelForm(graph, {}, {"x": 0}, {"y": 1}, hosts)


def model_of(engine, **options):
    ports = ModelPort("x", DataType.F32, (96, 64)), ModelPort("y", DataType.F32, (96, 192))
    return Model(ports[:1], ports[1:], interrupted, engine, **options)


@pytest.mark.parametrize("policy", POLICIES)
def test_models_with_host_functions_in_the_middle_give_the_same_bytes(policy):
    inputs = {"x": np.random.default_rng(0).standard_normal((96, 64)).astype(np.float32)}
    with gp.Engine(threads=1) as engine, model_of(engine, schedule="sequential") as model:
        expected = model.run(inputs)["y"].tobytes()
        plain = [len(compiled.program) for compiled in model.specialise().compiled]
    with gp.Engine(threads=2) as engine, model_of(engine, schedule=policy, streams=2) as model:
        share_always(model, inputs)
        for _ in range(10):
            assert model.run(inputs)["y"].tobytes() == expected
        steps = [len(compiled.program) for compiled in model.specialise().compiled]
        assert steps == (plain if policy == "sequential" else [8, 5])
        if policy in ("list", "wavefront", "asap", "nimble"):
            assert model.stats().streams == 2
