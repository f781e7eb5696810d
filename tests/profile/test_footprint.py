import numpy as np
import pytest

import graphpool as gp
from graphpool.profile import trace
from graphpool.profile.tracing import TracedStep, measure_footprint
from tests.cases.unknown_sizes import MODELS
from tests.helpers.tower_model import tower_model


def test_the_footprint_stays_below_the_arena(model, inputs):
    with trace() as recorded:
        model.run(inputs)
    footprint = recorded.footprint()
    assert 0 < footprint.peak_nbytes <= footprint.arena_nbytes
    assert list(footprint.times_ns) == sorted(footprint.times_ns)
    assert footprint.nbytes[-1] == 0


def test_bytes_that_are_shared_in_place_count_once():
    traced = {k: [_step(k, 10 * k)] for k in range(3)}
    footprint = measure_footprint([(0, 100, (0, 1)), (0, 100, (1, 2)), (64, 72, (1,)), (500, 8, (7,))], traced, 640)
    assert footprint.times_ns == (0, 10, 20, 30)
    assert footprint.nbytes == (100, 136, 100, 0)
    assert (footprint.peak_nbytes, footprint.arena_nbytes) == (136, 640)


def test_what_one_slice_needs_counts_while_that_slice_runs():
    traced = {0: [_step(0, 0)], 1: [_step(1, 10, 0), _step(1, 30, 1)], 2: [_step(2, 20, 0), _step(2, 40, 1)]}
    footprint = measure_footprint([(0, 8, (0, 1)), (64, 16, (1, 2)), (128, 32, (2,))], traced, 640)
    assert footprint.times_ns == (0, 10, 20, 30, 40, 50)
    assert footprint.nbytes == (8, 24, 56, 24, 48, 0)


def _step(number, start, trip=0):
    return TracedStep("", "", 1, 1, number, 0, 0, 1, 1, start, start + 10, trip=trip)


def test_the_footprint_needs_its_program(inputs):
    with gp.Engine(threads=1) as engine, tower_model(engine) as model, trace() as recorded:
        model.run(inputs)
    gp.cache.primitive_cache().clear()
    del model
    with pytest.raises(gp.StateError, match="is gone"):
        recorded.footprint()


def test_the_footprint_of_other_shapes_is_theirs():
    case, rng = MODELS["mlp"], np.random.default_rng(0)
    with gp.Engine("cpu", threads=1) as engine, case.load(engine) as model:
        peaks = []
        for rows in (3000, 2000, 1000, 3000):
            arrays = case.arrays({"n": rows}, rng)
            model.run(arrays)
            with trace() as recorded:
                model.run(arrays)
            footprint = recorded.footprint()
            assert footprint.arena_nbytes == model.specialise(arrays).compiled[0].scratchpad_nbytes
            assert footprint.peak_nbytes <= footprint.arena_nbytes
            peaks.append(footprint.peak_nbytes)
    assert peaks[0] == peaks[3] > peaks[1] > peaks[2] > 0
