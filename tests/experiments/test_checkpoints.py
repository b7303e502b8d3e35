"""What a checkpoint can hold, and what a run needs beside it."""

import numpy as np
import pytest

from gradproj.experiments import methods
from gradproj.experiments.config import resolve
from gradproj.experiments.learner import Learner
from gradproj.experiments.runner import Interrupted, run
from gradproj.experiments.schema import ConfigError
from gradproj.experiments.storage import RunError

QUICK = {
    "benchmark": "permuted-digits",
    "method": "single",
    "stream": {"tasks": 2, "samples": 20},
    "network_options": {"hidden": [4]},
}


@pytest.fixture
def keeping(monkeypatch):
    """Let the method `single` keep one more value, if it is given one."""

    def keep(**values):
        kind = methods.find("single")
        monkeypatch.setattr(kind, "saved", (*Learner.saved, "extra"))
        for name, value in values.items():
            monkeypatch.setattr(kind, name, value, raising=False)

    return keep


@pytest.mark.parametrize("value", [np.zeros(3), {"a": [np.zeros(3)]}, lambda: 0])
def test_what_could_not_be_read_back_is_refused_at_the_first_checkpoint(value, keeping, tmp_path):
    keeping(extra=value)
    with pytest.raises(RunError, match=r"saved: 'extra' of method 'single', a .* use tensors and"):
        run(resolve(QUICK), tmp_path, checkpoint_seconds=0.0)
    assert not (tmp_path / "checkpoint.pt").exists()


def test_plain_values_are_taken(keeping, tmp_path):
    keeping(extra={"a": [1, 2.5, None, "b", (3, True)]})
    with pytest.raises(Interrupted):
        run(resolve(QUICK), tmp_path, should_stop=lambda: True)
    assert run(resolve(QUICK), tmp_path, resume=True)


def test_a_saved_attribute_that_is_not_there_is_named_before_the_run(keeping, tmp_path):
    keeping()
    with pytest.raises(ConfigError, match="lists 'extra' and has no such attribute; set it in"):
        run(resolve(QUICK), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def stopped(folder):
    asked = iter([False, False, True])
    with pytest.raises(Interrupted):
        run(resolve(QUICK), folder, should_stop=lambda: next(asked))


def test_what_a_killed_process_was_writing_is_removed(tmp_path):
    stopped(tmp_path)
    for name in (".checkpoint.pt.ab12cd34", ".result.json.x", ".environment.json.y"):
        (tmp_path / name).write_bytes(b"half")
    assert run(resolve(QUICK), tmp_path, resume=True)
    assert [p.name for p in tmp_path.glob(".*")] == [".lock"]


@pytest.mark.parametrize("left", [None, b'{"step":1}\n'])
def test_a_log_that_was_removed_or_cut_is_named_with_the_cure(left, tmp_path):
    stopped(tmp_path)
    (tmp_path / "steps.jsonl").unlink()
    if left is not None:
        (tmp_path / "steps.jsonl").write_bytes(left)
    with pytest.raises(RunError, match=r"steps.jsonl has \d+ bytes; it had .* --force"):
        run(resolve(QUICK), tmp_path, resume=True)
    assert run(resolve(QUICK), tmp_path, force=True)
