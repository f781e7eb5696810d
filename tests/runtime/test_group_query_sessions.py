"""Sessions of GroupQueryAttention, whose caches are appended to in place."""

import numpy as np
import pytest

import graphpool as gp

pytest.importorskip("onnx")

from tests.cases.session_models import group_query


@pytest.fixture
def engine():
    with gp.Engine("cpu", threads=2) as engine:
        yield engine


def check(found, wanted):
    assert found.keys() == wanted.keys()
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)


class Words:
    """Words for `group_query`: a prompt of 5, then one or two; the last entry of a batch may end one word earlier."""

    def __init__(self, batch, seed=0, short=False):
        self.batch, self.rng, self.short, self.total = batch, np.random.default_rng(seed), short, 0

    def next(self, count):
        self.total += count
        mask = np.ones((self.batch, self.total), np.int64)
        if self.short and self.total > count:
            mask[-1, -1:] = 0
        return {"x": self.rng.standard_normal((self.batch, count, 32)).astype(np.float32), "mask": mask}


class GroupQueryByHand:
    """The model with caches passed by hand."""

    def __init__(self, model, batch):
        self.model = model
        self.states = {f"past.{name}": np.zeros((batch, 2, 0, 8), np.float32) for name in ("key", "value")}

    def run(self, inputs):
        found = self.model.run({**inputs, **self.states})
        self.states = {f"past.{name}": found.pop(f"present.{name}") for name in ("key", "value")}
        return found


@pytest.mark.parametrize(("batch", "short"), [(1, False), (2, False), (2, True)])
@pytest.mark.parametrize("schedule", ["sequential", "wavefront"])
def test_group_query_attention_appends_in_place(engine, batch, short, schedule):
    counts = (5, 1, 1, 1) if short else (5, 1, 1, 2, 1)
    with gp.onnx.load(group_query(), engine=engine, schedule=schedule) as model:
        with model.session(capacity={"p": 30, "b": 3}) as session:
            for seed in range(2):
                hand, words_of = GroupQueryByHand(model, batch), Words(batch, seed, short)
                for inputs in map(words_of.next, counts):
                    check(session.run(inputs), hand.run(inputs))
                    check(session.save(), hand.states)
                session.reset()
            assert not session._buffers._sides[1]  # no run wrote the whole of a cache to another place
        compilations = model.stats().compilations
        with model.session(capacity={"p": 60, "b": 3}) as session:
            words_of = Words(batch)
            for count in (5, *[1] * 20):
                session.run(words_of.next(count))
        assert model.stats().compilations <= compilations + 2


def test_forks_of_group_query_attention_go_their_own_ways(engine):
    with gp.onnx.load(group_query(), engine=engine) as model, model.session(capacity={"p": 30}) as session:
        hand, words_of = GroupQueryByHand(model, 1), Words(1)
        for count in (5, 1):
            inputs = words_of.next(count)
            check(session.run(inputs), hand.run(inputs))
        before = dict(hand.states)
        with session.fork() as fork:
            inputs, others = ({**words_of.next(0), **Words(1, seed).next(1)} for seed in (7, 8))
            inputs["mask"] = others["mask"] = np.ones((1, 7), np.int64)
            check(fork.run(inputs), hand.run(inputs))
            check(fork.save(), hand.states)
            check(session.save(), before)
            hand.states = before
            check(session.run(others), hand.run(others))
            check(session.save(), hand.states)
