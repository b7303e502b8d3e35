"""A full log, pipes in place of files, gzip bombs, and files that a killed process left."""

import errno
import gzip
import os
import shutil

import pytest
from support.running import QUICK, finish, result_of, stop_at

from gradproj.experiments.common import files
from gradproj.experiments.common.errors import DataError, RunError
from gradproj.experiments.data.files import LARGEST, read_checked
from gradproj.experiments.reports.collect import collect
from gradproj.experiments.runs.log import StepLog
from gradproj.experiments.runs.resolve import resolve
from gradproj.experiments.runs.runner import run

SMALL = {**QUICK, "method": "ours", "stream": {"tasks": 2, "samples": 30}}
FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    finish(SMALL, folder)
    return folder


def test_a_log_that_cannot_be_written_is_named(tmp_path):
    log = StepLog(tmp_path / "steps.jsonl")

    class Full:
        def write(self, _line):
            raise FULL

    log._file.close()
    log._file = Full()
    log.add({"loss": 1.0})
    with pytest.raises(files.FileError, match=r"steps\.jsonl cannot be written \(No space left"):
        log.sync()


@pytest.mark.parametrize("name", ["config.json", "result.json", "environment.json", "steps.jsonl"])
def test_a_pipe_in_place_of_a_file_is_refused_and_blocks_nothing(name, whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    (problem,) = collect([folder]).problems
    assert name in problem
    if name == "config.json":
        with pytest.raises(RunError, match=r"config\.json cannot be read"):
            run(resolve(SMALL), folder)
    if name == "result.json":
        with pytest.raises(RunError, match=r"is not a regular file; --resume or --force runs it"):
            run(resolve(SMALL), folder)
        assert run(resolve(SMALL), folder, resume=True)
        assert result_of(folder)["accuracy_matrix"] == result_of(whole)["accuracy_matrix"]


def test_pipes_in_place_of_checkpoints_and_the_log_block_nothing(tmp_path):
    stop_at(SMALL, tmp_path / "run", 3)
    (tmp_path / "run" / "checkpoint.pt").unlink()
    os.mkfifo(tmp_path / "run" / "checkpoint.pt")
    heard = []
    assert run(resolve(SMALL), tmp_path / "run", resume=True, report=heard.append)
    (notice,) = [event.message for event in heard if event.kind == "notice"]
    assert "checkpoint.pt is not a regular file" in notice

    (tmp_path / "other").mkdir()
    os.mkfifo(tmp_path / "other" / "steps.jsonl")
    with pytest.raises(RunError, match=r"steps\.jsonl cannot be written \(it is not a regular fil"):
        run(resolve(SMALL), tmp_path / "other")


def test_checkpoints_left_by_a_process_killed_at_the_very_end_are_removed(whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    left = ("checkpoint.pt", "checkpoint.previous.pt", ".checkpoint.pt.x1", ".result.json.x2")
    for name in left:
        (folder / name).write_bytes(b"left")
    assert not run(resolve(SMALL), folder)
    assert not any((folder / name).exists() for name in left)
    assert result_of(folder) == result_of(whole)


def test_a_run_removes_both_checkpoints_when_it_ends(tmp_path):
    run(resolve(SMALL), tmp_path, checkpoint_seconds=0.0)
    assert not list(tmp_path.glob("checkpoint*"))


def bomb(declared=None):
    packed = gzip.compress(bytes(1 << 20), mtime=0)
    return packed if declared is None else packed[:-4] + declared.to_bytes(4, "little")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (bomb(LARGEST + 1), "it would unpack to 268,435,457 bytes, more than any file here"),
        # It says that it is small; no more than that is unpacked.
        (bomb(10), "11 bytes with sha256"),
        (b"", "damaged"),
    ],
)
def test_a_gzip_bomb_is_refused_by_its_declared_size(content, message, tmp_path):
    (tmp_path / "images.gz").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_checked(tmp_path / "images", "0" * 64, "mnist")


def test_a_pipe_in_place_of_data_is_refused(tmp_path):
    os.mkfifo(tmp_path / "images")
    with pytest.raises(DataError, match="images is not a regular file; delete it"):
        read_checked(tmp_path / "images", "0" * 64, "mnist")
