"""`gradproj.experiments.run`: the same as `gradproj run`, with a result object."""

import json

import numpy as np
import pytest
import torch

from gradproj.experiments import Result, cli, make_dataset, preset, run, split
from gradproj.experiments.common.errors import ConfigError

SMALL = {"stream": {"tasks": 2, "samples": 20}, "network_options": {"hidden": [4]}}
SET = ["stream.tasks=2", "stream.samples=20", "network_options.hidden=[4]"]


def test_the_numbers_are_those_of_the_command_line(tmp_path, capsys):
    more = ["epochs=2", "options.strength=0.25"]
    command = ["run", "permuted-digits/ours", "--seeds", "3", "--out", str(tmp_path)]
    assert cli.main([*command, "--set", *SET, *more]) == 0
    (path,) = tmp_path.glob("*/*/seed-3/result.json")
    stored = json.loads(path.read_text())
    threads = torch.get_num_threads()
    result = run("permuted-digits/ours", seed=3, epochs=2, **{"options.strength": 0.25}, **SMALL)
    assert torch.get_num_threads() == threads
    assert isinstance(result, Result)
    assert result.accuracy_matrix.tolist() == stored["accuracy_matrix"]
    assert result.metrics == stored["metrics"]
    assert result.config.options.strength == 0.25
    assert result.folder is None
    assert "finished ACC" in capsys.readouterr().out


def test_a_result_can_be_drawn_and_tabulated(tmp_path, capsys):
    pytest.importorskip("pandas")
    result = run("permuted-digits/single", progress=False, **SMALL)
    assert capsys.readouterr().out == ""
    figure = result.plot(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert len(figure.axes[0].lines) == 3  # Two tasks and their mean.
    frame = result.to_dataframe()
    assert list(frame.columns) == ["learned", "task", "accuracy"]
    last = frame[frame.learned == 2].accuracy.mean()
    assert last == pytest.approx(result.metrics["acc"])
    acc = f"ACC {100 * last:.1f} %"
    start = f"<Result of permuted-digits/single, seed 0: {acc}, BWT ÷ (T−1) "
    assert repr(result).startswith(start)


def test_a_finished_run_in_a_folder_is_read(tmp_path):
    config = preset("permuted-digits/single", SMALL)
    first = run(config, tmp_path / "run", progress=False)
    made = (tmp_path / "run" / "result.json").stat().st_mtime_ns
    again = run(config, tmp_path / "run", progress=False)
    assert (tmp_path / "run" / "result.json").stat().st_mtime_ns == made
    assert np.array_equal(first.accuracy_matrix, again.accuracy_matrix)
    assert again.folder == tmp_path / "run"


def test_a_stream_of_own_data():
    rng = np.random.default_rng(0)
    y = np.repeat([0.0, 1.0, 2.0, 3.0], 40)
    data = make_dataset(rng.normal(size=(160, 8)) + y[:, None], y, name="mine")
    result = run(benchmark=split(data, tasks=2), method="preserve", progress=False)
    assert result.accuracy_matrix.shape == (2, 2)
    assert result.stored_per_task == 0


@pytest.mark.parametrize(
    ("arguments", "values", "message"),
    [
        (["permuted-digits/our"], {}, "did you mean 'permuted-digits/ours'"),
        (["permuted-digits/ours"], {"epoch": 1}, "did you mean 'epochs'"),
        (["permuted-digits/ours"], {"options.rnak": 1}, "did you mean 'options.rank'"),
        (["permuted-digits/ours"], {"method": "gem"}, "pass a preset, or both benchmark and"),
        ([], {"method": "gem"}, "pass a preset, or both benchmark and method"),
        ([], {}, "pass a preset, or both benchmark and method"),
        ([3], {}, "preset is a int; pass a name from `gradproj list`"),
        ([], {"benchmark": [], "method": "gem"}, "benchmark is a list; pass a name .* or a Stream"),
        ([], {"benchmark": "split-digits", "method": int}, "is not a name; pass one from"),
    ],
)
def test_wrong_arguments_are_explained(arguments, values, message):
    with pytest.raises(ConfigError, match=message):
        run(*arguments, **values)


def test_values_of_a_finished_configuration_and_folders_of_streams_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="epochs cannot be changed in a RunConfig"):
        run(preset("permuted-digits/ours"), epochs=2)
    x, y = np.random.default_rng(0).random((40, 3)), np.repeat([0, 1, 2, 3], 10)
    stream = split(make_dataset(x, y), tasks=2)
    with pytest.raises(ConfigError, match="folder cannot be used with a Stream"):
        run(folder=tmp_path, benchmark=stream, method="single")
    with pytest.raises(ConfigError, match="stream cannot be changed in a Stream"):
        run(benchmark=stream, method="single", stream={"tasks": 3})
