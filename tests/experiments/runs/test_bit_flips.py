"""A flipped bit in any file of a run is noticed, or changes nothing."""

import json
import os
import random
import shutil

import pytest
from support.running import QUICK, finish, result_of, steps_of

from gradproj.experiments.common.errors import RunError
from gradproj.experiments.reports.collect import collect
from gradproj.experiments.runs.folder import RunFolder
from gradproj.experiments.runs.resolve import resolve
from gradproj.experiments.runs.runner import run

SMALL = {**QUICK, "method": "ours", "stream": {"tasks": 2, "samples": 30}}


@pytest.fixture(autouse=True)
def no_sync(monkeypatch):
    """Do not wait for the disk, which takes most of the time."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def flipped(content, draw):
    place = draw.randrange(8 * len(content))
    return (
        content[: place // 8]
        + bytes([content[place // 8] ^ 1 << place % 8])
        + content[place // 8 + 1 :]
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A finished run, and one that was stopped at step 5 with checkpoints of steps 4 and 5."""
    root = tmp_path_factory.mktemp("runs")
    finish(SMALL, root / "whole")
    stop = iter([False] * 5 + [True]).__next__
    with pytest.raises(KeyboardInterrupt):
        run(resolve(SMALL), root / "cut", checkpoint_seconds=0.0, should_stop=stop)
    return root / "whole", root / "cut"


def without_times(run):
    return run.matrix.tolist(), run.metrics, run.config, run.corrected, run.environment


def test_a_flipped_bit_in_a_checkpoint_falls_back_to_the_previous_one(folders):
    _, cut = folders
    store, draw = RunFolder(cut), random.Random(0)
    good = {p: p.read_bytes() for p in (store.checkpoints.current, store.checkpoints.previous)}
    for _ in range(200):
        store.checkpoints.current.write_bytes(flipped(good[store.checkpoints.current], draw))
        state, problems = store.load_checkpoint()
        assert state["position"]["total"] == 4
        assert problems == ["checkpoint.pt is not used: its checksum does not match"]
        for path, content in good.items():
            path.write_bytes(content)


@pytest.mark.parametrize("name", ["checkpoint.pt", "checkpoint.previous.pt", "steps.jsonl"])
def test_a_flipped_bit_changes_no_result(name, folders, tmp_path):
    whole, cut = folders
    draw = random.Random(1)
    for i in range(12):
        folder = tmp_path / str(i)
        shutil.copytree(cut, folder)
        (folder / name).write_bytes(flipped((folder / name).read_bytes(), draw))
        heard = []
        assert run(resolve(SMALL), folder, resume=True, report=heard.append)
        said = any(event.kind == "notice" for event in heard)
        assert said == (name != "checkpoint.previous.pt")
        assert result_of(folder)["accuracy_matrix"] == result_of(whole)["accuracy_matrix"]
        assert steps_of(folder) == steps_of(whole)


@pytest.mark.parametrize("name", ["result.json", "config.json", "environment.json", "steps.jsonl"])
def test_a_flipped_bit_in_a_finished_run_is_not_reported_as_a_result(name, folders, tmp_path):
    whole, _ = folders
    folder, draw, noticed = tmp_path / "run", random.Random(2), 0
    shutil.copytree(whole, folder)
    (expected,) = collect([whole]).runs
    content = (folder / name).read_bytes()
    for _ in range(200):
        (folder / name).write_bytes(flipped(content, draw))
        found = collect([folder])
        if found.runs:
            assert without_times(found.runs[0]) == without_times(expected)
        noticed += len(found.problems)
    # The rest of those in result.json were in the white space between values.
    assert noticed > 120 if name == "result.json" else noticed == 200


def test_a_damaged_result_is_not_a_finished_run(folders, tmp_path):
    whole, _ = folders
    folder, draw = tmp_path / "run", random.Random(3)
    shutil.copytree(whole, folder)
    content, value = (folder / "result.json").read_bytes(), RunFolder(folder).read_result()
    for i in range(100):
        (folder / "result.json").write_bytes(damaged := flipped(content, draw))
        try:
            same = json.loads(damaged) == {**value, "sha256": json.loads(content)["sha256"]}
        except ValueError:
            same = False
        if same:
            assert not run(resolve(SMALL), folder)
            continue
        with pytest.raises(RunError, match=r"result\.json .*; --resume or --force runs it again"):
            run(resolve(SMALL), folder)
        if i % 20 == 0:
            assert run(resolve(SMALL), folder, resume=True)
            assert result_of(folder)["accuracy_matrix"] == value["accuracy_matrix"]


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"null", b"\xff", b'{"version": 2}'])
def test_a_result_without_content_is_not_a_finished_run(content, folders, tmp_path):
    whole, _ = folders
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "result.json").write_bytes(content)
    with pytest.raises(RunError, match="--resume or --force runs it again"):
        run(resolve(SMALL), tmp_path / "run")


def test_a_result_of_an_older_version_has_no_checksum_and_counts(folders, tmp_path):
    whole, _ = folders
    shutil.copytree(whole, tmp_path / "run")
    old = {**RunFolder(whole).read_result(), "version": 1}
    (tmp_path / "run" / "result.json").write_text(json.dumps(old))
    assert not run(resolve(SMALL), tmp_path / "run")
    assert collect([tmp_path / "run"]).runs[0].finished
