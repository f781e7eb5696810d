"""Some steps by themselves, on memory of their own."""

import pytest

from graphpool import InvalidArgumentError
from graphpool._kernels.core._team import Team
from graphpool.backends.cpu.place.link import link_stage
from graphpool.backends.cpu.place.stages import StageTimer
from graphpool.backends.cpu.place.streams import StepGraph
from tests.backends.cpu.place.test_streams import lowered
from tests.cases.stream_graphs import branches, random_branches


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_step_runs_alone_and_beside_others(seed, threads):
    lowering, ops, ports = lowered(random_branches(seed))
    steps = StepGraph.of(lowering, ops, ports, threads)
    due = list(steps.units)
    with StageTimer(threads) as timer:
        for stage in ([due[:1]], [due], [due[k::threads] for k in range(threads) if due[k::threads]]):
            assert timer.seconds(lowering, sum(ports), stage, 2) > 0


def test_a_stage_is_a_program_of_its_steps_with_a_stream_a_row():
    lowering, ops, ports = lowered(branches)
    first, second, *_ = StepGraph.of(lowering, ops, ports, 2).units
    nexternals = sum(ports) + len(lowering.packed)
    both = link_stage(lowering, nexternals, [[first], [second]], 2)
    assert (len(both), both.streams.nstreams) == (2, 2)
    assert both.calls == (lowering.steps[first].call, lowering.steps[second].call)
    alone = link_stage(lowering, nexternals, [[first, second]], 2)
    assert (len(alone), alone.streams) == (2, None)
    assert alone.arena_nbytes <= both.arena_nbytes


def test_runs_want_an_address_for_each_base():
    lowering, ops, ports = lowered(branches)
    [*units] = StepGraph.of(lowering, ops, ports, 2).units
    program = link_stage(lowering, sum(ports) + len(lowering.packed), [units[:1]], 1)
    team = Team(1)
    with pytest.raises(InvalidArgumentError, match="addresses"):
        program.time_runs([0], team, 1)
    team.close()
