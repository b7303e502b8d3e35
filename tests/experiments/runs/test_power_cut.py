"""A power cut at any moment: the run resumes from what is left, and ends as if nothing happened."""

import os
import random

import pytest
from support.power import Disk, lay_out
from support.running import QUICK, finish, result_of, steps_of

from gradproj.experiments.common import files
from gradproj.experiments.common.errors import RunError
from gradproj.experiments.runs.checkpoint import Checkpoints
from gradproj.experiments.runs.folder import RunFolder
from gradproj.experiments.runs.resolve import resolve
from gradproj.experiments.runs.runner import run

SMALL = {**QUICK, "method": "ours", "stream": {"tasks": 2, "samples": 30}, "ema": 0.9}
EQUAL = ("accuracy_matrix", "averaged_accuracy_matrix", "baseline", "metrics", "steps")


@pytest.fixture(autouse=True)
def no_sync(monkeypatch):
    """Do not wait for the disk, which takes most of the time."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


class Watched:
    """A run on a watched disk, and every state in which a cut may leave it.

    Each comes with the step of the last checkpoint that was safe by then.
    """

    def __init__(self, folder, monkeypatch, checkpoint_seconds=0.0, **arguments):
        self.states = []
        draw = random.Random(0).randint
        with monkeypatch.context() as patch:
            disk = Disk(folder, folder.with_name(f"{folder.name}-spare"), patch)
            seen, safe, save = set(), 0, Checkpoints.save

            def saved(checkpoints, state):
                nonlocal safe
                save(checkpoints, state)
                safe = state["position"]["total"]

            def look():
                for state in disk.states(lambda most: draw(0, most)):
                    key = tuple(sorted(state.items()))
                    if key not in seen:
                        seen.add(key)
                        self.states.append((safe, state))

            patch.setattr(Checkpoints, "save", saved)
            disk.before = look
            arguments["checkpoint_seconds"] = checkpoint_seconds
            run(resolve(SMALL), folder, **arguments)
            look()


def assert_equal(folder, whole):
    assert {key: result_of(folder).get(key) for key in EQUAL} == {
        key: result_of(whole).get(key) for key in EQUAL
    }
    assert steps_of(folder) == steps_of(whole)


@pytest.mark.parametrize(("checkpoint_seconds", "many"), [(0.0, 60), (1e9, 8)])
def test_a_cut_at_any_moment_is_survived_bit_for_bit(
    checkpoint_seconds, many, tmp_path, monkeypatch
):
    finish(SMALL, tmp_path / "whole")
    states = Watched(tmp_path / "run", monkeypatch, checkpoint_seconds).states
    assert len(states) > many
    for number, (safe, state) in enumerate(states):
        folder, heard = tmp_path / f"cut-{number}", []
        lay_out(state, folder)
        ran = run(resolve(SMALL), folder, resume=True, report=heard.append)
        # Files were synced in the right order, so no checkpoint is ever found unusable.
        assert "notice" not in {event.kind for event in heard}
        first = next((event.step for event in heard if event.kind == "step"), 7)
        assert not ran or first in (safe + 1, safe + 2)
        assert_equal(folder, tmp_path / "whole")
    # When the run has said that it is finished, it is.
    assert not ran


def test_a_cut_while_another_configuration_takes_the_folder_never_mixes_them(tmp_path, monkeypatch):
    """With --force: the new configuration must not be found beside the old result."""
    finish(SMALL, tmp_path / "whole")
    finish({**SMALL, "lr": 0.5}, tmp_path / "run")
    states = Watched(tmp_path / "run", monkeypatch, force=True).states[:40]
    for number, (_, state) in enumerate(states):
        folder = tmp_path / f"cut-{number}"
        lay_out(state, folder)
        if b'"lr": 0.5' in state.get("config.json", b""):
            with pytest.raises(RunError, match=r"another configuration \(differs in lr\)"):
                run(resolve(SMALL), folder, resume=True)
        else:
            run(resolve(SMALL), folder, resume=True)
            assert_equal(folder, tmp_path / "whole")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was stopped at step 5 with checkpoints of steps 4 and 5, and the whole one."""
    root = tmp_path_factory.mktemp("stopped")
    finish(SMALL, root / "whole")
    stop = iter([False] * 5 + [True]).__next__  # asked after each step and after the first task
    with pytest.raises(KeyboardInterrupt):
        run(resolve(SMALL), root / "run", checkpoint_seconds=0.0, should_stop=stop)
    files = {p.name: p.read_bytes() for p in (root / "run").iterdir() if p.name != ".lock"}
    return files, root / "whole"


def test_a_log_cut_anywhere_falls_back_to_what_it_still_holds(stopped, tmp_path):
    files, whole = stopped
    log = files["steps.jsonl"]
    ends = [0, *(i + 1 for i, byte in enumerate(log) if byte == ord("\n"))]
    for length in range(len(log) + 1):
        folder = tmp_path / str(length)
        lay_out({**files, "steps.jsonl": log[:length]}, folder)
        state, problems = RunFolder(folder).load_checkpoint()
        kept = sum(length >= end for end in ends) - 1  # whole lines
        assert (state["position"]["total"] if state else 0) == (kept if kept >= 4 else 0)
        assert len(problems) == {5: 0, 4: 1}.get(kept, 2)
        if length % 97 == 0 or length in ends:
            folder, heard = tmp_path / f"run-{length}", []
            lay_out({**files, "steps.jsonl": log[:length]}, folder)
            assert run(resolve(SMALL), folder, resume=True, report=heard.append)
            notices = [event.message for event in heard if event.kind == "notice"]
            assert len(notices) == (kept < 5)
            assert_equal(folder, whole)


@pytest.mark.parametrize("name", ["checkpoint.pt", "checkpoint.previous.pt"])
def test_a_checkpoint_cut_anywhere_is_never_used(name, stopped, tmp_path):
    files, whole = stopped
    content = files[name]
    for length in [*range(0, 200, 7), *range(200, len(content), 997), len(content) - 1]:
        folder = tmp_path / str(length)
        lay_out({**files, name: content[:length]}, folder)
        state, problems = RunFolder(folder).load_checkpoint()
        if name == "checkpoint.pt":
            assert state["position"]["total"] == 4
            assert problems == ["checkpoint.pt is not used: its checksum does not match"]
        else:
            assert (state["position"]["total"], problems) == (5, [])
    assert run(resolve(SMALL), folder, resume=True)
    assert_equal(folder, whole)


def test_without_any_usable_checkpoint_a_run_begins_again_and_says_so(stopped, tmp_path):
    files, whole = stopped
    cut = {name: b"" if name.startswith("checkpoint") else text for name, text in files.items()}
    lay_out(cut, tmp_path / "run")
    heard = []
    assert run(resolve(SMALL), tmp_path / "run", resume=True, report=heard.append)
    (notice,) = [event.message for event in heard if event.kind == "notice"]
    assert notice.startswith("checkpoint.pt is not used: its checksum does not match; checkpoint.p")
    assert notice.endswith("resumes from the beginning")
    assert_equal(tmp_path / "run", whole)


def test_the_names_of_new_folders_are_synced_up_to_the_first_that_existed(tmp_path, monkeypatch):
    """Otherwise a power cut leaves no folder, whatever was synced inside it."""
    synced = []
    monkeypatch.setattr(files, "sync_folder", synced.append)
    files.make_folder(tmp_path / "out" / "benchmark" / "seed-0")
    assert set(synced) == {tmp_path, tmp_path / "out", tmp_path / "out" / "benchmark"}
