"""File operations that fail, one after the other: the file is named, and nothing is lost.

`make fuzz` lets each operation fail; otherwise every fifth does.
"""

import errno
import os
import shutil

import pytest
from support.faults import FULL, Faults, files_limited_to
from support.running import QUICK, finish, result_of, steps_of

from gradproj.experiments.common.errors import RunError
from gradproj.experiments.runs.resolve import resolve
from gradproj.experiments.runs.runner import run

SMALL = {**QUICK, "method": "ours", "stream": {"tasks": 2, "samples": 30}}
STRIDE = 1 if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else 5
# Failures that a run may ignore: the folder exists, or the run is finished.
HARMLESS = ("mkdir", "unlink")


@pytest.fixture(autouse=True)
def no_sync(monkeypatch):
    """Do not wait for the disk, which takes most of the time."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A finished run, and one that was stopped at step 5 with two checkpoints."""
    root = tmp_path_factory.mktemp("runs")
    finish(SMALL, root / "whole")
    stop = iter([False] * 5 + [True]).__next__
    with pytest.raises(KeyboardInterrupt):
        run(resolve(SMALL), root / "stopped", checkpoint_seconds=0.0, should_stop=stop)
    return root


def assert_resumes(folder, whole):
    run(resolve(SMALL), folder, resume=True)
    assert result_of(folder)["accuracy_matrix"] == result_of(whole)["accuracy_matrix"]
    assert steps_of(folder) == steps_of(whole)
    assert {p.name for p in folder.iterdir()} == {p.name for p in whole.iterdir()}


def attempt(folder, monkeypatch, number, arguments, *, lasting=False):
    """Run with a fault; return the operations and the message, "" if there was no error."""
    with monkeypatch.context() as patch:
        faults = Faults(folder, patch, number, lasting=lasting)
        try:
            run(resolve(SMALL), folder, checkpoint_seconds=0.0, **arguments)
        except RunError as error:
            return faults.seen, str(error)
    return faults.seen, ""


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="finds file names in /proc")
@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize(
    ("start", "arguments"),
    [(None, {}), ("stopped", {"resume": True}), ("stopped", {"force": True}), ("whole", {})],
)
def test_an_operation_that_fails_is_named_and_loses_nothing(
    start, arguments, lasting, folders, tmp_path, monkeypatch
):
    def prepared(name):
        if start is not None:
            shutil.copytree(folders / start, tmp_path / name)
        return tmp_path / name

    operations, message = attempt(prepared("good"), monkeypatch, None, arguments)
    assert message == ""
    for number in range(1, len(operations) + 1, STRIDE):
        folder = prepared(str(number))
        seen, message = attempt(folder, monkeypatch, number, arguments, lasting=lasting)
        operation, _ = seen[number - 1]
        if message or operation not in HARMLESS:
            assert FULL[1] in message, seen[number - 1]
            assert str(folder) in message
        assert_resumes(folder, folders / "whole")
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("size", "name"), [(0, "config.json"), (300, "config.json"), (5000, "checkpoint.pt")]
)
def test_a_write_that_stops_in_the_middle_leaves_no_part(size, name, folders, tmp_path):
    folder = tmp_path / "run"
    with (
        files_limited_to(size),
        pytest.raises(RunError, match=rf"{name} cannot be written \(File too large\)"),
    ):
        run(resolve(SMALL), folder, checkpoint_seconds=0.0)
    assert not (folder / name).exists()
    assert not [p for p in folder.glob(".*") if p.name != ".lock"]
    assert_resumes(folder, folders / "whole")


def test_a_log_that_stops_in_the_middle_of_a_line_is_written_again(tmp_path):
    values = {**SMALL, "stream": {"tasks": 2, "samples": 100}}
    finish(values, tmp_path / "whole")
    with (
        files_limited_to(1000),
        pytest.raises(RunError, match=r"steps\.jsonl cannot be written \(File too large\)"),
    ):
        run(resolve(values), tmp_path / "run", checkpoint_seconds=1e9)
    assert (tmp_path / "run" / "steps.jsonl").stat().st_size == 1000
    run(resolve(values), tmp_path / "run", resume=True)
    assert steps_of(tmp_path / "run") == steps_of(tmp_path / "whole")


def refuse(name, number, monkeypatch):
    real = os.open

    def opened(path, *args, **kwargs):
        if str(path).endswith(name):
            raise OSError(number, os.strerror(number))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", opened)


def test_a_checkpoint_in_a_bad_sector_is_replaced_by_the_previous_one(
    folders, tmp_path, monkeypatch
):
    shutil.copytree(folders / "stopped", tmp_path / "run")
    heard = []
    with monkeypatch.context() as patch:
        refuse("/checkpoint.pt", errno.EIO, patch)
        run(resolve(SMALL), tmp_path / "run", resume=True, report=heard.append)
    (notice,) = [event.message for event in heard if event.kind == "notice"]
    assert notice == (
        "checkpoint.pt is not used: it cannot be read (Input/output error); resumes from step 4"
    )
    assert steps_of(tmp_path / "run") == steps_of(folders / "whole")


@pytest.mark.parametrize("name", ["checkpoint.pt", "config.json"])
def test_a_file_without_the_right_to_read_it_stops_the_run(name, folders, tmp_path, monkeypatch):
    """Otherwise the run would start over and overwrite work that can still be read later."""
    shutil.copytree(folders / "stopped", tmp_path / "run")
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    with monkeypatch.context() as patch:
        refuse(f"/{name}", errno.EACCES, patch)
        with pytest.raises(RunError, match=rf"{name} cannot be read \(Permission denied\); .*fix"):
            run(resolve(SMALL), tmp_path / "run", resume=True)
    after = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    del before["environment.json"], after["environment.json"]
    assert after == before
