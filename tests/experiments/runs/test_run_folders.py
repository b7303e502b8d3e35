"""Folders that a run accepts, continues or refuses."""

import errno

import pytest
import torch
from support.running import QUICK, SPLIT, finish, result_of, steps_of, stop_at

from gradproj.experiments import methods
from gradproj.experiments.common import files
from gradproj.experiments.common.errors import ConfigError, RunError
from gradproj.experiments.methods.config import VERSION
from gradproj.experiments.runs import runner
from gradproj.experiments.runs.checkpoint import Checkpoints
from gradproj.experiments.runs.folder import RunFolder
from gradproj.experiments.runs.log import StepLog
from gradproj.experiments.runs.resolve import resolve
from gradproj.experiments.runs.runner import run
from gradproj.experiments.streams import benchmarks


def test_a_finished_run_is_not_run_again_unless_forced(tmp_path):
    finish(QUICK, tmp_path)
    before = (tmp_path / "result.json").stat().st_mtime_ns
    assert not run(resolve(QUICK), tmp_path)
    assert (tmp_path / "result.json").stat().st_mtime_ns == before
    assert run(resolve(QUICK), tmp_path, force=True)


def test_force_keeps_what_is_there_if_the_new_run_cannot_begin(tmp_path):
    result = finish(QUICK, tmp_path)
    with pytest.raises(ConfigError, match="tasks=0 must be at least 1"):
        run(resolve({**QUICK, "stream": {"tasks": 0}}), tmp_path, force=True)
    assert result_of(tmp_path) == result


def test_an_error_while_training_keeps_its_kind(tmp_path, monkeypatch):
    def broken(*_):
        raise ValueError("a defect of the method")

    monkeypatch.setattr(methods.find("single"), "observe", broken)
    with pytest.raises(ValueError, match="a defect of the method") as caught:
        run(resolve(QUICK), tmp_path)
    assert caught.type is ValueError


def test_an_unfinished_run_needs_a_word(tmp_path):
    stop_at(QUICK, tmp_path, 3)
    with pytest.raises(RunError, match="--resume continues it, --force starts it over"):
        run(resolve(QUICK), tmp_path)
    assert run(resolve(QUICK), tmp_path, force=True)
    assert len(steps_of(tmp_path)) == 12


def test_another_configuration_is_not_mixed_in(tmp_path):
    finish(QUICK, tmp_path)
    with pytest.raises(RunError, match=r"another configuration \(differs in lr\)"):
        run(resolve({**QUICK, "lr": 0.5}), tmp_path)


def test_a_config_from_a_newer_version_is_refused(tmp_path):
    finish(QUICK, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace(f'"version": {VERSION}', '"version": 99'))
    with pytest.raises(RunError, match="version=99 was written by a newer gradproj"):
        run(resolve(QUICK), tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"file/run cannot be written .*--out"):
        run(resolve(QUICK), tmp_path / "file" / "run")


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    store = Checkpoints(tmp_path)
    store.save({"step": 1})

    def full(_descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        store.save({"step": 2})
    assert store.load(lambda _: "") == ({"step": 1}, [])
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_the_log_is_cut_back_to_the_checkpoint(tmp_path):
    log = StepLog(tmp_path / "log")
    log.add({"loss": torch.tensor(1.0)})
    offset = log.sync()["bytes"]
    log.add({"loss": torch.tensor(2.0)})
    log.close()
    log = StepLog(tmp_path / "log", offset)
    log.add({"loss": 3.0})
    log.add({"loss": float("nan")})
    log.close()
    assert (tmp_path / "log").read_text() == '{"loss":1.0}\n{"loss":3.0}\n{"loss":null}\n'


def test_a_method_is_refused_a_scenario_that_it_is_not_for(tmp_path):
    values = {**SPLIT, "method": "independent", "stream": {"tasks": 5, "scenario": "class"}}
    with pytest.raises(ValueError, match=r"'independent' is for the scenarios .* is 'class'"):
        run(resolve(values), tmp_path)


def test_one_folder_is_one_process(tmp_path):
    with (
        RunFolder(tmp_path).prepared(resolve(QUICK)),
        pytest.raises(RunError, match=r"another process is running in .*choose another folder"),
    ):
        run(resolve(QUICK), tmp_path)
    assert run(resolve(QUICK), tmp_path)


def test_a_run_done_by_another_process_while_the_data_was_loaded_is_left_alone(
    tmp_path, monkeypatch
):
    build = benchmarks.build

    def late(name, **options):
        monkeypatch.setattr(runner.benchmarks, "build", build)
        finish(QUICK, tmp_path)
        return build(name, **options)

    monkeypatch.setattr(runner.benchmarks, "build", late)
    assert not run(resolve(QUICK), tmp_path)
    (tmp_path / "config.json").unlink()
    monkeypatch.setattr(runner.benchmarks, "build", late)
    with pytest.raises(RunError, match=r"another configuration \(differs in lr\)"):
        run(resolve({**QUICK, "lr": 0.5}), tmp_path)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[]", b"{"])
def test_a_damaged_configuration_is_named(content, tmp_path):
    finish(QUICK, tmp_path)
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(RunError, match=r"config\.json cannot be read .*; --force starts the run"):
        run(resolve(QUICK), tmp_path)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"a": 1}, r"KeyError: 'config'"),
        ({"config": resolve({**QUICK, "seed": 5}).to_json()}, "but of another configuration"),
        ({"config": resolve(QUICK).to_json()}, "KeyError: 'learner'"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(state, reason, tmp_path):
    store = RunFolder(tmp_path)
    with store.prepared(resolve(QUICK)):
        log = StepLog(store.steps)
        store.checkpoints.save({**state, "log": log.sync()})
        log.close()
    with pytest.raises(RunError, match=f"a checkpoint that is not of this run.*{reason}.*--force"):
        run(resolve(QUICK), tmp_path, resume=True)


@pytest.mark.parametrize("method", ["gdumb", "joint", "independent", "muc", "gd", "dr"])
def test_methods_not_trained_in_every_step_have_no_averaged_weights(method, tmp_path):
    stream = {"tasks": 5, "scenario": methods.find(method).scenarios[0]}
    values = {**SPLIT, "method": method, "stream": stream, "ema": 0.9}
    with pytest.raises(ConfigError, match=f"ema=0.9: method '{method}' cannot be evaluated with"):
        run(resolve(values), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["ours", "icarl-original", "lucir"])
def test_too_few_exemplars_are_refused_before_training(method, tmp_path):
    values = {"benchmark": "class-digits", "method": method, "memory": {"total": 5},
              "stream": {"tasks": 5}}  # fmt: skip
    values["memory"]["policy"] = "herding"
    with pytest.raises(ConfigError, match=r"memory.total=5 leaves no exemplar for each of 10"):
        run(resolve(values), tmp_path / "run")


def test_others_may_read_what_a_run_wrote(tmp_path):
    assert run(resolve(QUICK), tmp_path)
    for name in ("config.json", "environment.json", "result.json"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o644


def test_starting_over_drops_the_old_tensorboard_files(tmp_path):
    assert run(resolve(QUICK), tmp_path, tensorboard=True)
    assert run(resolve(QUICK), tmp_path, tensorboard=True, force=True)
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1


def test_networks_of_ones_own_tasks_may_differ_in_size(tmp_path):
    stream = {"tasks": 3, "first": 4, "samples": 20}
    assert run(resolve({**SPLIT, "method": "independent", "stream": stream}), tmp_path)
