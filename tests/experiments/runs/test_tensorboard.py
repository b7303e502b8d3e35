"""TensorBoard files: of this run alone, and of each of its steps once."""

import shutil

import pytest

from gradproj.experiments.common.errors import RunError
from gradproj.experiments.runs.folder import RunFolder
from gradproj.experiments.runs.resolve import resolve
from gradproj.experiments.runs.runner import Interrupted, run

pytest.importorskip("tensorboard")

QUICK = {
    "benchmark": "permuted-digits",
    "method": "single",
    "stream": {"tasks": 2, "samples": 40},
    "network_options": {"hidden": [4]},
}


def files(folder):
    return sorted((folder / "tensorboard").iterdir())


def stop_after(steps, folder):
    asked = iter([False] * (steps - 1) + [True])
    with pytest.raises(Interrupted):
        run(resolve(QUICK), folder, resume=True, tensorboard=True, should_stop=lambda: next(asked))


def test_starting_over_leaves_the_files_of_a_run_in_progress_alone(tmp_path):
    run(resolve(QUICK), tmp_path, tensorboard=True)
    before = files(tmp_path)
    with (
        RunFolder(tmp_path).prepared(resolve(QUICK)),
        pytest.raises(RunError, match="another process is running"),
    ):
        run(resolve(QUICK), tmp_path, tensorboard=True, force=True)
    assert files(tmp_path) == before


def test_steps_after_the_checkpoint_are_dropped_on_resuming(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    stop_after(3, tmp_path)
    shutil.copy(tmp_path / "checkpoint.pt", tmp_path / "kept.pt")
    stop_after(2, tmp_path)
    shutil.copy(tmp_path / "kept.pt", tmp_path / "checkpoint.pt")  # as if killed after step 4
    assert run(resolve(QUICK), tmp_path, resume=True, tensorboard=True)
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in found.Scalars("loss")] == list(range(1, 9))
    assert [event.step for event in found.Scalars("accuracy")] == [4, 8]
