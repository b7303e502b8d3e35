"""Workers that are killed or fail, output without a reader, and Ctrl-C at any moment."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.grids import Abort
from support.processes import HANGING

from gradproj.experiments.runs.events import Event
from gradproj.experiments.runs.grid import Job, Outcome
from gradproj.experiments.runs.grid.processes import run_in_processes
from gradproj.experiments.runs.grid.progress import RETRIES, Progress
from gradproj.experiments.runs.grid.server import import_environment
from gradproj.experiments.runs.resolve import resolve

QUICK = {
    "benchmark": "permuted-digits",
    "method": "single",
    "stream": {"tasks": 2, "samples": 20},
    "network_options": {"hidden": [4]},
}
SMALL = ["--set", "stream.tasks=2", "stream.samples=20", "network_options.hidden=[4]"]
MAIN = """
import os
from gradproj.experiments.cli import main
if __name__ == "__main__":
    os.write(1, b"begins\\n")
    raise SystemExit(main())
"""


def start(arguments, folder, **options):
    # Like an installed command, a script in another folder than the working directory. With `-P`,
    # which workers inherit, they would not look there in any case.
    script = folder / "bin" / "command.py"
    script.parent.mkdir(exist_ok=True)
    script.write_text(MAIN)
    return subprocess.Popen(
        [sys.executable, str(script), *arguments],
        cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True, **options,
    )  # fmt: skip


def results(folder):
    return [json.loads(p.read_text()) for p in sorted(Path(folder).rglob("result.json"))]


def test_a_killed_run_is_started_again_and_a_failing_one_shows_its_error(tmp_path):
    def dying(number):
        options = {"mark": str(tmp_path / f"mark-{number}"), "number": int(number)}
        config = resolve({**QUICK, "method": "support.grids:DiesOnce", "options": options})
        return Job(signal.Signals(number).name, config, tmp_path / str(number), arguments)

    arguments = {"checkpoint_seconds": 0}
    jobs = [
        Job("plain", resolve(QUICK), tmp_path / "plain", arguments),
        dying(signal.SIGKILL),
        dying(signal.SIGTERM),
        Job("abort", Abort(), tmp_path / "abort", {}),
    ]
    events = []
    *finished, abort = run_in_processes(jobs, events.append, workers=1)
    assert [outcome.kind for outcome in finished] == ["finished"] * 3
    first, second = (event for event in events if "was killed" in event.message)
    assert (first.run, second.run) == ("SIGKILL", "SIGTERM")
    restarted = "; it continues from its last checkpoint (1 of 3)"
    assert first.message == f"its process was killed (exit code -9){restarted}"
    assert second.message == f"its process was killed (SIGTERM){restarted}"
    # At SIGTERM the run stopped by itself, which is not the end of it.
    assert [event.run for event in events if event.kind == "interrupted"] == []
    matrices = [result["accuracy_matrix"] for result in results(tmp_path)]
    assert len(matrices) == 3
    assert matrices == matrices[:1] * 3
    assert abort.kind == "failed"
    assert abort.message.startswith("its process ended with exit code 7; --resume continues it\n")
    assert abort.message.endswith("the library gave up")


def test_a_run_is_restarted_a_few_times_and_never_started_over_once_it_has_begun(tmp_path):
    shown = []
    progress = Progress(shown.append)
    job = Job("run", None, tmp_path, {"force": True, "resume": False})
    failed = Outcome("run", "failed", "lost")
    first = progress.end(job, failed, "exit code -9")
    assert first.arguments == {"force": True, "resume": True}
    progress.hear(Event("step", "run"))
    again = first
    for _ in range(RETRIES - 1):
        again = progress.end(again, failed, "exit code -9")
        assert again.arguments == {"force": False, "resume": True}
    assert progress.end(again, failed, "exit code -9") is None
    kinds = ["notice", "step", *["notice"] * (RETRIES - 1), "failed"]
    assert [event.kind for event in shown] == kinds
    assert progress.outcomes([job]) == [failed]


def test_the_last_event_of_a_run_is_shown_once_even_if_its_process_could_not_send_it(tmp_path):
    shown = []
    progress = Progress(shown.append)
    for name in ("sent", "lost"):
        if name == "sent":
            progress.hear(Event("finished", name, message="ACC 0.5"))
        assert progress.end(Job(name, None, tmp_path, {}), Outcome(name, "finished")) is None
    assert [(event.run, event.message) for event in shown] == [("sent", "ACC 0.5"), ("lost", "")]


def test_a_process_that_is_killed_after_its_run_ended_does_not_start_it_again(tmp_path):
    shown = []
    progress = Progress(shown.append)
    for kind, message in (("finished", "ACC 0.5"), ("failed", "the disk is full")):
        job = Job(kind, None, tmp_path, {})
        progress.hear(Event(kind, kind, message=message))
        assert progress.end(job, Outcome(kind, "failed", "lost"), "exit code -9") is None
    jobs = [Job(name, None, tmp_path, {}) for name in ("finished", "failed")]
    finished, failed = progress.outcomes(jobs)
    assert finished == Outcome("finished", "finished")
    assert failed == Outcome("failed", "failed", "the disk is full")
    assert [event.kind for event in shown] == ["finished", "failed"]


def test_a_run_that_finished_before_its_process_was_killed_is_not_called_skipped(tmp_path):
    shown = []
    progress = Progress(shown.append)
    job = Job("run", None, tmp_path, {})
    again = progress.end(job, Outcome("run", "failed", "lost"), "exit code -9")
    progress.hear(Event("skipped", "run", message="finished before"))
    assert progress.end(again, Outcome("run", "skipped", "finished before")) is None
    assert progress.outcomes([job]) == [Outcome("run", "finished")]
    (_, last) = shown
    assert (last.kind, last.message) == ("finished", "before its process was killed")


def test_workers_import_what_the_parent_imported(tmp_path):
    """Started beside a folder `gradproj` that is another one, as in a clone of the repository."""
    (tmp_path / "gradproj").mkdir()
    (tmp_path / "gradproj" / "__init__.py").write_text("raise SystemExit('the wrong gradproj')")
    command = ["run", "permuted-digits/single", "--seeds", "0", "1", "--jobs", "2", *SMALL]
    process = start(command, tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    out, _ = process.communicate(timeout=HANGING)
    assert process.returncode == 0, out
    assert len(results(tmp_path)) == 2


def test_a_new_python_is_told_the_path_of_this_one(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "/somewhere"])
    environment = import_environment()
    assert environment["PYTHONPATH"] == f"{tmp_path}{os.pathsep}/somewhere"
    assert environment["PYTHONSAFEPATH"] == "1"


@pytest.mark.parametrize("seeds", [["0"], ["0", "1"]])
def test_a_closed_pipe_does_not_end_the_training(seeds, tmp_path):
    command = ["run", "permuted-digits/single", "--seeds", *seeds, "--jobs", "2", *SMALL]
    process = start(command, tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == "begins\n"
    process.stdout.close()
    assert process.wait(timeout=HANGING) == 0
    assert process.stderr.read() == ""
    process.stderr.close()
    assert len(results(tmp_path)) == len(seeds)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_output_to_a_full_disk_does_not_end_the_training(tmp_path):
    silent = "".join(line for line in MAIN.splitlines(keepends=True) if "begins" not in line)
    command = [sys.executable, "-c", silent, "run"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*command, "permuted-digits/single", *SMALL], cwd=tmp_path, stdout=full, timeout=HANGING
        )
    assert done.returncode == 0
    assert len(results(tmp_path)) == 1


@pytest.mark.parametrize("seeds", [["0"], ["0", "1"]])
@pytest.mark.parametrize("seconds", [0.2, 0.6, 2.0])
def test_ctrl_c_is_one_line_from_the_first_moment_of_the_command(seconds, seeds, tmp_path):
    command = ["run", "permuted-digits/single", "--seeds", *seeds, "--set", "epochs=10000"]
    process = start(
        command, tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    assert process.stdout.readline() == "begins\n"
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes
    out, _ = process.communicate(timeout=HANGING)
    assert process.returncode == 130, out
    assert "Traceback" not in out
    assert "Error" not in out
    assert "stopped" in out or "continue with the same command and --resume" in out
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)


IMPORTS = """
import sys, tempfile
from gradproj.experiments.runs.grid import preloaded
from gradproj.experiments.runs.resolve import resolve
before = set(sys.modules)
config = resolve({"benchmark": "permuted-digits", "method": "ours", "stream": {"tasks": 2}})
assert preloaded.runner.run(config, tempfile.mkdtemp())
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
assert "torch._dynamo" in before
"""


def test_a_worker_imports_hardly_anything_beyond_its_server():
    """Workers spent two seconds each on torch's compiler, scikit-learn and the methods."""
    command = [sys.executable, "-c", IMPORTS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANGING)
    imported = set(done.stdout.split())
    assert not imported & {"gradproj", "sklearn", "scipy", "PIL", "matplotlib", "ray"}
