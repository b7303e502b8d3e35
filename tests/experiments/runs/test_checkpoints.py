"""Values that a checkpoint can hold, and files that a run leaves beside it."""

import io

import numpy as np
import pytest
import torch

from gradproj.experiments import methods
from gradproj.experiments.common.errors import ConfigError, RunError
from gradproj.experiments.common.files import seal
from gradproj.experiments.methods.learner import Learner
from gradproj.experiments.runs.checkpoint import KIND, Checkpoints
from gradproj.experiments.runs.resolve import resolve
from gradproj.experiments.runs.runner import Interrupted, run

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


def test_the_only_good_checkpoint_is_not_replaced_by_a_damaged_one(tmp_path):
    store = Checkpoints(tmp_path)
    for step in (1, 2):
        store.save({"step": step})
    store.current.write_bytes(b"damaged")
    assert store.load(lambda _: "")[0] == {"step": 1}
    store.save({"step": 2})
    store.current.write_bytes(b"damaged")
    state, problems = store.load(lambda _: "")
    assert state == {"step": 1}
    assert problems == ["checkpoint.pt is not used: its checksum does not match"]


def test_the_previous_checkpoint_alone_is_an_unfinished_run(tmp_path):
    """A power cut between the two renamings of a save leaves only the previous one."""
    stopped(tmp_path)
    (tmp_path / "checkpoint.pt").rename(tmp_path / "checkpoint.previous.pt")
    with pytest.raises(RunError, match="holds an unfinished run; --resume continues it"):
        run(resolve(QUICK), tmp_path)
    heard = []
    assert run(resolve(QUICK), tmp_path, resume=True, report=heard.append)
    assert next(event.step for event in heard if event.kind == "step") == 3
    assert not list(tmp_path.glob("checkpoint*"))


def test_a_sealed_file_that_is_not_a_checkpoint_is_refused(tmp_path):
    content = io.BytesIO()
    torch.save([1, 2], content)
    sealed = seal(KIND, content.getvalue()) + content.getvalue()
    (tmp_path / "checkpoint.pt").write_bytes(sealed)
    with pytest.raises(RunError, match=r"is not a checkpoint of a run \(a list\); --force starts"):
        Checkpoints(tmp_path).load(lambda _: "")


class Payload:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return exec, ("open('was-run', 'w').close()",)


def test_a_checkpoint_runs_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = io.BytesIO()
    torch.save({"learner": Payload()}, content)
    sealed = seal(KIND, content.getvalue()) + content.getvalue()
    (tmp_path / "checkpoint.pt").write_bytes(sealed)
    with pytest.raises(RunError, match=r"checkpoint\.pt cannot be read \(UnpicklingError\)"):
        Checkpoints(tmp_path).load(lambda _: "")
    assert not (tmp_path / "was-run").exists()
