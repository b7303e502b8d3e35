"""The command line, as a person meets it."""

import json
import os
import subprocess
import sys

import pytest

from gradproj.experiments import cli
from gradproj.experiments.cli.summary import summarize
from gradproj.experiments.common.errors import ConfigError
from gradproj.experiments.reports.collect import collect
from gradproj.experiments.reports.rows import control_of, group
from gradproj.experiments.runs import presets
from gradproj.experiments.runs.grid import Outcome
from gradproj.experiments.runs.jobs import make_jobs

SMALL = ["--set", "stream.tasks=2", "stream.samples=20", "network_options.hidden=[4]"]


def test_run_writes_a_folder_for_each_run_and_skips_what_is_done(tmp_path, capsys):
    out = tmp_path / "[bold]"  # no markup
    command = ["run", "permuted-digits/ours", "--out", str(out), *SMALL]
    assert cli.main(command) == 0
    text = capsys.readouterr().out
    assert f"1 finished; results in {out}" in text
    assert "evaluat" not in text  # Short evaluations need no line in a log.
    (result,) = out.glob("permuted-digits/ours,*/seed-0/result.json")
    assert json.loads(result.read_text())["preset"] == "permuted-digits/ours"
    assert cli.main(command) == 0
    assert "1 skipped" in capsys.readouterr().out
    assert cli.main([*command, "--force"]) == 0
    assert "1 finished" in capsys.readouterr().out


def test_run_ends_with_a_table_of_all_seeds_that_fits_a_screen(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out, small = tmp_path / "runs", ["--set", "stream.tasks=2"]
    command = ["run", "permuted-digits/ours", "--seeds", "0", "1", "--out", str(out), *small]
    assert cli.main(command) == 0
    text = capsys.readouterr().out
    table = text[text.index("run  ") :]
    assert max(map(len, table.splitlines()[:-1])) <= 80  # The last line names the folder.
    acc = [
        json.loads(path.read_text())["metrics"]["acc"]
        for path in sorted(out.glob("permuted-digits/ours,*/seed-*/result.json"))
    ]
    (row,) = [line for line in table.splitlines() if "permuted-digits/ours" in line]
    assert "0, 1 " in row
    assert f" {50 * sum(acc):.1f} ± " in row
    assert "ACC: mean test accuracy of all tasks at the end." in table
    assert "2 finished" in table


def test_the_table_has_a_dash_for_a_method_that_is_measured_only_at_the_end(tmp_path):
    (job,) = make_jobs(["permuted-digits/ours"], out=tmp_path, arguments={})
    assert summarize([job]) is None
    job.folder.mkdir(parents=True)
    result = {"metrics": {"acc": 0.5}, "train_seconds": 1, "evaluation_seconds": 2}
    result = {**result, "accuracy_matrix": [[0.5]]}
    # The early versions did not count the stored samples.
    for stored, shown in (({"stored_per_task": 0}, "0"), ({}, "–")):
        (job.folder / "result.json").write_text(json.dumps({**result, **stored}))
        table = summarize([job])
        cells = [next(iter(column.cells)) for column in table.columns]
        assert cells == ["permuted-digits/ours", "0", shown, "50.0", "–", "3 s"]


def test_run_without_a_preset(tmp_path, capsys):
    command = ["run", "--benchmark", "split-digits", "--method", "ewc", "--out", str(tmp_path)]
    assert cli.main([*command, "--set", "stream.samples=20", "lr=0.5"]) == 0
    config = next(tmp_path.glob("split-digits/ewc,*/seed-0/config.json"))
    assert json.loads(config.read_text())["lr"] == 0.5
    capsys.readouterr()


def test_a_benchmark_brings_what_its_presets_have_in_common(tmp_path):
    def config(benchmark, method):
        (job,) = make_jobs([], benchmark=benchmark, method=method, out=tmp_path, arguments={})
        return job.config

    assert config("split-cifar100", "si").network == "resnet18-small"
    assert config("permuted-digits", "single").memory.per_task == 100
    assert config("permuted-digits", "gem") == presets.find("permuted-digits/gem")


def test_many_changes_make_a_folder_that_can_be_made(tmp_path):
    changes = [f"milestones={list(range(100))}", "epochs=200"]
    names = set()
    for extra in ("lr=0.1", "lr=0.2"):
        overrides = [*changes, extra]
        (job,) = make_jobs(["permuted-digits/gem"], overrides=overrides, out=tmp_path, arguments={})
        job.folder.mkdir(parents=True)
        names.add(job.name)
    assert len(names) == 2


def test_a_preset_named_twice_is_run_once(tmp_path):
    names = ["permuted-digits/gem"] * 2
    assert len(make_jobs(names, out=tmp_path, arguments={})) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["permuted-digits/our"], "did you mean 'permuted-digits/ours'?"),
        (["permuted-digits/ours", "--set", "epoch=3"], "did you mean 'epochs'?"),
        (["permuted-digits/ours", "--set", "epochs"], "write key=value"),
        (["permuted-digits/ours", "--set", "options.rank=-1"], "options.rank=-1 is below"),
        (["permuted-digits/ours", "--set", "seed=5"], "use --seeds 5"),
        (["permuted-digits/ours", "--set", "method=gem"], "use --method with --benchmark, or an"),
        (["permuted-digits/ours", "--set", "benchmark=split-digits"], "use --benchmark with --m"),
        (["permuted-digits/ours", "--set", "preset=x/y"], "name the preset before the options"),
        (["permuted-digits/ours", "--set", "version=1"], "--set version=1 cannot be set"),
        ([], "name one or more presets, or both --benchmark and --method"),
        (["--method", "gem"], "name one or more presets, or both --benchmark and --method"),
        (["permuted-digits/ours", "--method", "gem"], "name one or more presets, or both"),
        (["permuted-digits/ours", "--address", "x:1"], "--address x:1 is of a Ray cluster; add"),
    ],
)
def test_wrong_input_is_explained(arguments, message, capsys):
    assert cli.main(["run", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_old_name_of_the_executor_is_refused(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["run", "permuted-digits/ours", "--engine", "ray"])
    assert stop.value.code == 2
    assert "--engine: is now called --executor; write --executor ray" in capsys.readouterr().err


def test_presets_after_the_seeds_are_told_where_to_stand(capsys):
    with pytest.raises(SystemExit):
        cli.main(["run", "--seeds", "0", "1", "permuted-digits/ours"])
    assert "'permuted-digits/ours' is not a whole number; presets come before" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("seconds", ["nan", "-1", "inf", "soon"])
def test_a_time_between_checkpoints_that_is_none_is_refused(seconds, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["run", "permuted-digits/ours", "--checkpoint-seconds", seconds])
    assert stop.value.code == 2
    assert f"--checkpoint-seconds: {seconds}" in capsys.readouterr().err.replace("'", "")


@pytest.mark.parametrize("command", [["run", "permuted-digits/ours"], ["figure", "time"], ["demo"]])
@pytest.mark.parametrize("jobs", ["0", "-1"])
def test_fewer_than_one_run_at_a_time_is_refused(command, jobs, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([*command, "--jobs", jobs])
    assert stop.value.code == 2
    assert f"--jobs: {jobs} is too small; use a number >= 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "memory.policy=fifo"], "policy='fifo' is not known; use"),
        (["--set", "stream.tasks=0"], "tasks=0 must be at least 1"),
        (["--set", "stream.tasks=7"], "tasks=7 does not divide 10 classes"),
        (["--set", "stream.samples=999999"], "samples=999999: task 0 has"),
        (["--set", "options.rank=0.5", "options.relaxation=last"], "rank=0.5 is a share"),
        (["--set", "stream.scenario=none"], "scenario='none' is not known; use 'task'"),
        (["--set", "network_options.hidden=abc"], "network_options={'hidden': 'abc'}"),
        (["--device", "foo"], "device='foo' cannot be used"),
        (["--device", "cuda:99"], "device='cuda:99' cannot be used"),
    ],
)
def test_a_run_that_cannot_be_built_is_one_line_and_leaves_no_folder(
    arguments, message, tmp_path, capsys
):
    assert cli.main(["run", "split-digits/ours", *arguments, "--out", str(tmp_path / "runs")]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert message in lines[0]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("method", ["ours", "single"])
def test_a_run_that_diverges_is_one_line_that_says_to_lower_the_rate(method, tmp_path, capsys):
    changes = ["--set", "stream.tasks=2", "stream.samples=50", "lr=1e9"]
    assert cli.main(["run", f"permuted-digits/{method}", *changes, "--out", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert "diverged in task 1, after step" in lines[0]
    assert "lower lr, which is 1e+09" in lines[0]


def test_several_runs_that_fail_are_listed_at_the_end(tmp_path, capsys):
    changes = ["--set", "stream.tasks=2", "stream.samples=50", "lr=1e9", "--out", str(tmp_path)]
    assert cli.main(["run", "permuted-digits/single", "--seeds", "0", "1", *changes]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("2 failed")
    assert ["seed-0: the training" in lines[3], "seed-1: the training" in lines[4]] == [True] * 2


def test_a_folder_that_cannot_be_written_is_a_failed_run(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main(["run", "permuted-digits/ours", "--out", str(tmp_path / "file")]) == 1
    assert "cannot be written" in capsys.readouterr().out


def test_missing_data_is_a_failed_run_with_a_cure(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    arguments = ["run", "mnist-permutations/single", "--out", str(tmp_path / "runs")]
    assert cli.main([*arguments, "--data-dir", str(tmp_path / "data")]) == 1
    text = capsys.readouterr().out
    assert "mnist" in text
    assert "Traceback" not in text


def test_jobs_of_a_grid_have_their_own_folders(tmp_path):
    names = ["permuted-digits/gem", "split-digits/gem"]
    jobs = make_jobs(names, seeds=[0, 1, 1], overrides=["lr=0.2"], out=tmp_path, arguments={})
    assert [job.name for job in jobs] == [
        "permuted-digits/gem,lr=0.2/seed-0",
        "permuted-digits/gem,lr=0.2/seed-1",
        "split-digits/gem,lr=0.2/seed-0",
        "split-digits/gem,lr=0.2/seed-1",
    ]
    assert {job.config.seed for job in jobs} == {0, 1}
    assert all(job.config.lr == 0.2 for job in jobs)
    with pytest.raises(ConfigError):
        make_jobs([], arguments={})


def test_the_controls_of_a_grid_are_run_once_with_all_other_values_equal(tmp_path):
    names = ["agem-sum", "agem-released", "ours", "ours-part-margin", "full", "ewc", "ours-printed"]
    jobs = make_jobs([f"mnist-permutations/{name}" for name in names], seeds=[0, 1],
                     overrides=["epochs=2"], controls=True, out=tmp_path, arguments={})  # fmt: skip
    found = {job.name: job for job in jobs[2 * len(names) :]}
    assert list(found) == [
        f"mnist-permutations/{entry}/seed-{seed}"
        for entry in (
            "agem-sum,epochs=2-control",
            "agem-released,epochs=2-control",
            "replay,epochs=2",  # also the control of `full`
            "replay-part-margin,epochs=2",
            "ours-printed,epochs=2-control",
        )
        for seed in (0, 1)
    ]
    config = found["mnist-permutations/agem-released,epochs=2-control/seed-1"].config
    assert (config.method, config.seed, config.epochs, config.memory.batch) == ("replay", 1, 2, 0)
    options = config.options
    assert (options.strength, options.replay, options.rule) == (0.5, "mean", "violated")
    assert found["mnist-permutations/replay,epochs=2/seed-0"].config.preset.endswith("/replay")
    config = found["mnist-permutations/ours-printed,epochs=2-control/seed-0"].config
    assert (config.method, config.lr, config.preset) == ("single", 0.1, "")


def test_a_control_that_is_named_too_is_run_once(tmp_path):
    names = ["class-digits/ours", "class-digits/replay"]
    jobs = make_jobs(names, controls=True, out=tmp_path, arguments={})
    assert [job.name for job in jobs] == [f"{name}/seed-0" for name in names]


def test_controls_run_from_the_command_line(tmp_path):
    small = ["stream.tasks=2", "stream.samples=20", "network_options.hidden=[4]"]
    out = ["--out", str(tmp_path / "runs")]
    command = ["run", "permuted-digits/agem-sum", "--controls", "--set", *small, *out]
    assert cli.main(command) == 0
    found = collect([tmp_path / "runs"])
    assert not found.problems
    first, second = sorted(group(found.runs), key=lambda row: row.config["method"])
    assert control_of(first, [first, second]) is second


def test_patterns_stand_for_all_presets_that_match():
    jobs = make_jobs(["class-digits/ours*", "class-digits/ours"], arguments={})
    assert [job.config.preset for job in jobs] == [
        "class-digits/ours",
        "class-digits/ours-printed",
    ]
    with pytest.raises(ConfigError, match=r"no preset matches 'split-\*/nothing'"):
        make_jobs(["split-*/nothing"], arguments={})
    with pytest.raises(ConfigError, match=r"'split-digits' is a benchmark .* 'split-digits/ours'"):
        make_jobs(["split-digits"], arguments={})


def test_the_demo_prints_a_table_and_saves_a_figure(tmp_path, capsys):
    from gradproj.experiments.cli.demo import run_demo

    small = ["stream.tasks=2", "stream.samples=20", "network_options.hidden=[4]"]
    out = tmp_path / "[bold]"  # no markup
    assert run_demo(out, seeds=[0], overrides=small, workers=2) == 0
    text = capsys.readouterr().out
    words = ("ours", "replay", "preserve", "fine-tuning", "ACC", "BWT ÷ (T−1)", "±")
    for word in (*words, "Stored: samples per task", str(out / "demo.png")):
        assert word in text
    assert text.splitlines()[-1].startswith("Next: gradproj run split-digits/replay split-digits")
    assert (out / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_a_demo_that_is_stopped_says_how_it_continues(tmp_path, capsys, monkeypatch):
    def stopped(jobs, *_, **__):
        return [Outcome(job.name, "interrupted") for job in jobs]

    monkeypatch.setattr("gradproj.experiments.cli.demo.execute_all", stopped)
    assert cli.main(["demo", "--out", str(tmp_path)]) == 130
    assert "stopped; the same command continues from here" in capsys.readouterr().out


def test_the_core_alone_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "gradproj.experiments.cli.list", None)
    with pytest.raises(SystemExit) as stop:
        cli.main(["list"])
    assert stop.value.code == 2
    assert "install it with pip install 'gradproj[experiments]'" in capsys.readouterr().err


def test_a_terminal_without_unicode_shows_what_it_can():
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    main = "from gradproj.experiments.cli import main; raise SystemExit(main())"
    command = [sys.executable, "-c", main, "list", "methods"]
    done = subprocess.run(command, env=os.environ | plain, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"gem" in done.stdout


@pytest.mark.parametrize("module", ["argparse", "rich.console", "numpy", "torch"])
def test_ctrl_c_while_modules_are_imported_is_one_line(module):
    code = f"""
import signal, sys
def press(event, args):
    if event == "import" and args[0] == {module!r}:
        signal.raise_signal(signal.SIGINT)
sys.addaudithook(press)
from gradproj.experiments.cli import main
sys.exit(main(["run", "permuted-digits/single", "--help"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "gradproj: stopped\n")


SLOW = {"matplotlib", "numpy", "ray", "rich", "sklearn", "torch", "torchvision"}


@pytest.mark.parametrize(
    ("command", "packages"),
    [
        (["--help"], SLOW),
        (["figure", "--help"], {"matplotlib", "ray"}),
        (["inspect", "--help"], {"matplotlib", "ray"}),
        (["report", "--help"], {"matplotlib", "ray"}),
    ],
)
def test_a_command_does_not_wait_for_packages_that_it_does_not_use(command, packages):
    code = f"""
import sys
from gradproj.experiments.cli import main
try:
    main({command!r})
except SystemExit:
    print(*set(sys.modules) & {packages!r}, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: gradproj")
    assert done.stderr.split() == []
