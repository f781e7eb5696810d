"""The thread team: who answers, when threads start and end, forks and the end of the process."""

import ctypes
import gc
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import graphpool as gp
from graphpool._kernels.core import _team
from graphpool._kernels.core._team import MAX_THREADS, Team
from tests.helpers.memory import run_in_child, run_threads

TIMEOUT_S = 60


def threads_of_process():
    """Names of the team's threads in this process, sorted."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return sorted(name for name in names if name.startswith("graphpool/"))


@pytest.fixture
def limit():
    """Sets the limit of the process, and lifts it at the end."""
    library = ctypes.CDLL(_team.__file__)
    before = ctypes.c_int64(2**63 - 1)
    yield lambda n: library.graphpool_set_thread_limit(ctypes.c_int64(n))
    library.graphpool_set_thread_limit(before)


def run_script(script):
    """What a fresh interpreter prints."""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout.split()


@pytest.mark.parametrize("nthreads", [1, 2, 3, 5, 16])
def test_every_thread_answers(nthreads):
    team = Team(nthreads)
    assert [team.roll_call(nthreads) for _ in range(200)] == [nthreads] * 200
    team.close()


def test_threads_start_when_they_are_needed():
    team = Team(5)
    assert team.nstarted == 0
    assert team.roll_call(3) == 3
    assert team.nstarted == 2
    assert team.roll_call(99) == 5
    assert team.nstarted == 4
    assert team.roll_call(1) == team.roll_call(0) == 1
    team.close()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no list of threads to read")
@pytest.mark.native
def test_threads_have_names_and_take_no_signals():
    team = Team(3)
    team.roll_call(3)
    assert threads_of_process() == ["graphpool/1", "graphpool/2"]
    for path in Path("/proc/self/task").glob("*/status"):
        fields = dict(line.split(":", 1) for line in path.read_text().splitlines())
        if fields["Name"].strip().startswith("graphpool/"):
            assert int(fields["SigBlk"], 16) & 0x7FFF == 0x7FFF & ~(1 << 8 | 1 << 18)  # all but SIGKILL
    team.close()
    assert threads_of_process() == []


def test_sleeping_threads_wake_up():
    team = Team(4)
    for pause_s in (0, 1e-4, 1e-3, 1e-2) * 5:
        time.sleep(pause_s)
        assert team.roll_call(4) == 4
    team.close()


def test_a_closed_team_has_no_threads_and_starts_none():
    team = Team(3)
    team.roll_call(3)
    team.close()
    team.close()
    assert (team.nstarted, team.is_closed) == (0, True)
    with pytest.raises(gp.StateError, match="closed"):
        team.roll_call(3)
    assert "closed" in repr(team)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no list of threads to read")
def test_a_collected_team_ends_its_threads():
    team = Team(4)
    team.roll_call(4)
    del team
    gc.collect()
    assert threads_of_process() == []


@pytest.mark.parametrize("nthreads", [0, -1, MAX_THREADS + 1, 2.0, "2", None])
def test_bad_numbers_of_threads_are_refused(nthreads):
    with pytest.raises(gp.InvalidArgumentError, match="threads"):
        Team(nthreads)


def test_who_finds_the_team_taken_is_alone():
    team = Team(3)
    answers = run_threads(6, lambda i: [team.roll_call(3) for _ in range(300)])
    assert {nthreads for mine in answers for nthreads in mine} <= {1, 3}
    assert team.roll_call(3) == 3
    team.close()


def test_closing_waits_for_the_region_that_runs():
    for _ in range(20):
        team = Team(4)
        team.roll_call(4)

        def work(i, team=team):
            if i == 0:
                team.close()
                return
            try:
                while True:
                    assert team.roll_call(4) in (1, 4)
            except gp.StateError:
                return

        run_threads(3, work)
        assert team.nstarted == 0


def test_the_limit_holds_for_every_team(limit):
    team = Team(4)
    limit(2)
    assert team.roll_call(4) == 2
    limit(1)
    assert team.roll_call(4) == 1
    limit(100)
    assert team.roll_call(4) == 4
    team.close()


@pytest.mark.native
def test_a_child_starts_threads_of_its_own():
    team = Team(3)
    team.roll_call(3)

    def child():
        assert threads_of_process() == []
        assert team.nstarted == 0
        assert [team.roll_call(3) for _ in range(50)] == [3] * 50
        team.close()

    run_in_child(child)
    assert team.roll_call(3) == 3
    team.close()


@pytest.mark.native
def test_a_child_forked_while_the_team_is_busy_has_a_free_team():
    team = Team(3)
    done = threading.Event()

    def keep_busy(i):
        if i == 0:
            while not done.is_set():
                team.roll_call(3)
            return
        try:
            for _ in range(20):
                run_in_child(lambda: team.roll_call(3) == 3 or sys.exit(1))
        finally:
            done.set()

    run_threads(2, keep_busy)
    team.close()


@pytest.mark.parametrize("ending", ["", "team.close()", "del team", "import os; os._exit(0)", "raise SystemExit"])
@pytest.mark.native
def test_the_process_ends_with_teams_open(ending):
    printed = run_script(
        "from graphpool._kernels.core._team import Team\nteam = Team(3)\n"
        f"print(team.roll_call(3), flush=True)\n{ending}"
    )
    assert printed == ["3"]


@pytest.mark.native
def test_the_process_ends_while_a_daemon_thread_runs_regions():
    script = """
import threading
from graphpool._kernels.core._team import Team
team = Team(3)
started = threading.Event()
def work():
    while True:
        team.roll_call(3)
        started.set()
threading.Thread(target=work, daemon=True).start()
started.wait()
print("ok")
"""
    assert run_script(script) == ["ok"]


@pytest.mark.native
def test_thread_sanitizer_finds_no_race(tmp_path):
    compiler, setarch = shutil.which("gcc") or shutil.which("clang"), shutil.which("setarch")
    if compiler is None or setarch is None:
        pytest.skip("needs a C compiler and setarch")
    program = tmp_path / "team_race"
    build = [compiler, "-O1", "-g", "-fsanitize=thread", "-pthread", "-o", program]
    smallest = subprocess.run([*build, "-x", "c", "-"], input=b"int main(void) { return 0; }", check=False)
    if smallest.returncode:
        pytest.skip("the compiler builds no programs with ThreadSanitizer")
    headers = Path(_team.__file__).parents[1]
    subprocess.run([*build, f"-I{headers}", Path(__file__).parent / "team_race.c"], check=True)
    # Without address randomisation, which ThreadSanitizer's memory map does not always tolerate.
    result = subprocess.run([setarch, "-R", program], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (result.returncode, result.stderr) == (0, "")
