"""A grid on a local Ray: lost workers, a lost queue, Ctrl-C and SIGTERM."""

import os
import signal
import subprocess
import sys

import pytest
from support.processes import HANGING, descendants, wait_for
from support.running import finish, result_of, steps_of

from gradproj.experiments.common.errors import RunError
from gradproj.experiments.runs.grid import Job, execute_all
from gradproj.experiments.runs.resolve import resolve

QUICK = {
    "benchmark": "permuted-digits",
    "method": "single",
    "stream": {"tasks": 2, "samples": 20},
    "network_options": {"hidden": [4]},
}


def size_of(file):
    return file.stat().st_size if file.exists() else 0


class NotHere:
    """In place of a configuration: cannot be sent to a worker that has other modules."""

    def __reduce__(self):
        return eval, ("__import__('a_module_of_this_machine')",)


def test_ray_missing_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RunError, match=r"pip install 'gradproj\[ray\]'"):
        execute_all([Job("one", resolve(QUICK), tmp_path, {})], lambda _: None, executor="ray")


@pytest.mark.slow
# Ray's own start leaves sockets and processes to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_neither_a_lost_worker_nor_a_lost_queue_ends_the_grid(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(p for p in sys.path if p))
    before = signal.getsignal(signal.SIGTERM)
    (tmp_path / "blocked").write_text("a file where the folder should be")
    config = resolve(QUICK)

    def dying(number):
        options = {"mark": str(tmp_path / f"mark-{number}"), "number": int(number)}
        return resolve({**QUICK, "method": "support.grids:DiesOnce", "options": options})

    configs = {
        "good": config,
        "killed": dying(signal.SIGKILL),
        "terminated": dying(signal.SIGTERM),
        "blocked": config,
        "elsewhere": NotHere(),
        "last": config,
    }
    events, queues = [], []

    def show(event):
        events.append(event)
        if event.kind == "task" and not queues:
            ours = {pid: name for pid, name in descendants().items() if name.startswith("ray::")}
            # By default Ray lowers the priority of workers, which then starve on a busy machine.
            assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in ours} == {os.nice(0)}
            queues.extend(pid for pid, name in ours.items() if "_QueueActor" in name)
            os.kill(queues[0], signal.SIGKILL)

    arguments = {"checkpoint_seconds": 0}
    jobs = [Job(name, each, tmp_path / name, arguments) for name, each in configs.items()]
    outcomes = {o.name: o for o in execute_all(jobs, show, executor="ray", workers=1)}
    assert {name: o.kind for name, o in outcomes.items()} == {
        "good": "finished",
        "killed": "finished",
        "terminated": "finished",
        "blocked": "failed",
        "elsewhere": "failed",
        "last": "finished",
    }
    assert len(queues) == 1
    assert "blocked cannot be written" in outcomes["blocked"].message
    assert "a_module_of_this_machine" in outcomes["elsewhere"].message
    restarts = {e.run: e.message for e in events if "was killed" in e.message}
    assert set(restarts) == {"killed", "terminated"}
    assert "WorkerCrashedError); it continues from its last checkpoint (1" in restarts["killed"]
    assert "SIGTERM); it continues from its last checkpoint (1" in restarts["terminated"]
    # The queue was lost in the first run, and its successor passes on the events of the last.
    assert any(event.run == "last" and event.kind == "task" for event in events)
    ended = [e.run for e in events if e.kind in ("finished", "failed", "interrupted")]
    assert sorted(ended) == sorted(configs)

    expected = finish(QUICK, tmp_path / "here")["accuracy_matrix"]
    for name in ("good", "killed", "terminated", "last"):
        assert result_of(tmp_path / name)["accuracy_matrix"] == expected
        assert steps_of(tmp_path / name) == steps_of(tmp_path / "here")
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_every_run_at_a_checkpoint(number, code, tmp_path):
    pytest.importorskip("ray")
    # Long enough never to end by itself, and the only checkpoint is the one of the stop.
    command = ["run", "permuted-digits/single", "--seeds", "0", "1", "--jobs", "1"]
    command += ["--executor", "ray", "--set", "epochs=10000", "stream.samples=20"]
    command += ["--checkpoint-seconds", "1e9", "--out", str(tmp_path)]
    main = "from gradproj.experiments.cli import main; raise SystemExit(main())"
    parent = subprocess.Popen(
        [sys.executable, "-c", main, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    (started, waiting) = (
        tmp_path / "permuted-digits" / "single,epochs=10000,stream.samples=20" / f"seed-{i}"
        for i in range(2)
    )
    try:
        # A run that is stopped before its first step has no checkpoint.
        wait_for(lambda: size_of(started / "steps.jsonl") > 0, parent)
        if number == signal.SIGINT:  # A terminal sends it to all processes.
            os.killpg(parent.pid, number)
        else:
            parent.send_signal(number)
        out, _ = parent.communicate(timeout=HANGING)
    finally:
        parent.kill()
    assert parent.returncode == code, out
    assert (started / "checkpoint.pt").exists()
    assert not waiting.exists()
    assert "2 interrupted" in out
    assert "continue with the same command and --resume" in out
    assert "Traceback" not in out
