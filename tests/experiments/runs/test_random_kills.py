"""Grids whose workers are killed at random moments: every result equals that of a serial run.

`make fuzz` does it with 200 runs and 10 kills per executor; otherwise the grid is small.
"""

import os
import random
import signal
import sys
import time
from contextlib import suppress

import pytest
from support.processes import descendants
from support.running import QUICK, result_of, steps_of

from gradproj.experiments.runs.grid import Job, execute_all
from gradproj.experiments.runs.grid.worker import execute
from gradproj.experiments.runs.resolve import resolve

RUNS, KILLS = (200, 10) if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else (8, 2)
METHODS = ("ours", "single", "gem", "preserve")


def make_jobs(folder, **arguments):
    """Return runs of several methods, one seed per run."""
    jobs = []
    for seed in range(RUNS):
        name = f"run-{seed}"
        config = resolve({**QUICK, "method": METHODS[seed % len(METHODS)], "seed": seed})
        jobs.append(Job(name, config, folder / name, arguments))
    return jobs


def workers(executor):
    """Return the processes that train at this moment."""
    below = descendants()
    if executor == "ray":
        return [pid for pid, name in below.items() if name.startswith("ray::_work")]
    # Workers are forked from a server, which has the same command line.
    (server, *_) = [pid for pid, name in below.items() if "forkserver" in name]
    return list(descendants(server))


class Killer:
    """Kills a worker a random moment after some of the runs have finished."""

    def __init__(self, executor):
        self.executor = executor
        self.draw = random.Random(7)
        self.moments = set(self.draw.sample(range(1, RUNS - 1), KILLS))
        self.events = []
        self.killed = 0

    def __call__(self, event):
        self.events.append(event)
        if event.kind == "finished" and self.count("finished") in self.moments:
            time.sleep(self.draw.uniform(0.0, 0.3))
            if alive := workers(self.executor):
                with suppress(ProcessLookupError):
                    os.kill(self.draw.choice(alive), signal.SIGKILL)
                    self.killed += 1

    def count(self, kind):
        return sum(event.kind == kind for event in self.events)


@pytest.mark.slow
# Ray's own start leaves sockets and processes to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="finds workers in /proc")
@pytest.mark.parametrize("executor", ["processes", "ray"])
def test_results_after_random_kills_equal_those_of_serial_runs(executor, tmp_path, monkeypatch):
    if executor == "ray":
        pytest.importorskip("ray")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(p for p in sys.path if p))
    jobs = make_jobs(tmp_path / "grid", checkpoint_seconds=0)
    killer = Killer(executor)
    outcomes = execute_all(jobs, killer, executor=executor, workers=2)
    assert [(o.kind, o.message) for o in outcomes] == [("finished", "")] * RUNS
    restarts = sum("it continues from its last checkpoint" in e.message for e in killer.events)
    print(f"{executor}: {RUNS} runs, {killer.killed} workers killed, {restarts} runs restarted")
    assert killer.killed > 0
    # A worker may have sent its result before it was killed, or not have begun its next run. Two
    # kills may both hit such a moment, ten do not.
    assert restarts > 0 or KILLS < 10

    for job, other in zip(jobs, make_jobs(tmp_path / "serial"), strict=True):
        assert execute(other, lambda _: None).kind == "finished"
        assert steps_of(job.folder) == steps_of(other.folder)
        ours, theirs = result_of(job.folder), result_of(other.folder)
        for key in ("accuracy_matrix", "metrics", "baseline", "steps", "stored_per_task"):
            assert ours[key] == theirs[key], (job.name, key)
        assert not list(job.folder.glob("checkpoint*"))
