"""Reports: the numbers of the paper, and how runs are found and named."""

import shlex
from pathlib import Path

import pytest
from support.reports import MNIST
from support.runs import matrix, write_run

from gradproj.experiments.common.files import component
from gradproj.experiments.common.schema import to_plain
from gradproj.experiments.reports import paper
from gradproj.experiments.reports.collect import TUNING, collect
from gradproj.experiments.reports.content import build
from gradproj.experiments.reports.naming import name_of
from gradproj.experiments.reports.render.markdown import render
from gradproj.experiments.reports.rows import group
from gradproj.experiments.runs import presets
from gradproj.experiments.runs.jobs import make_jobs

# The paper's numbers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "benchmark", "entry", "acc", "judge", "bwt"),
    [
        ("main", MNIST, "single", 57.4, None, None),  # its ± is not a spread over seeds
        ("main", MNIST, "ours", 82.9, 0.3, None),
        ("main", "split-cifar10", "icarl", 63.9, 0.5, None),
        ("main", "split-cifar100", "gdumb", 60.3, 0.9, None),
        ("main", "split-tiny-imagenet", "agem", 33.5, 0.3, None),
        ("main-3ep", MNIST, "multimodel-3ep", 59.4, 0.5, None),
        ("main-3ep", "split-cifar100", "sgem-3ep", 68.8, 0.2, None),
        ("ablation", "split-cifar10", "full-pca", 77.5, 0.4, None),
        ("ablation", MNIST, "agem", 76.4, 0.3, None),  # the method behind the paper's (b)
        ("ablation", MNIST, "shared-only", 76.4, None, None),
        ("ablation", "split-tiny-imagenet", "single", 21.8, 0.4, None),
        ("layerwise", MNIST, "agem-layerwise", 77.1, 0.3, -0.008),
        ("layerwise", "split-tiny-imagenet", "layerwise", 37.6, 0.4, 0.018),
        ("class-incremental", "class-cifar100", "sgem", 59.98, None, None),
    ],
)
def test_numbers_of_the_paper(name, benchmark, entry, acc, judge, bwt):
    cells = next(t for t in paper.tables() if t.name == name).cells
    cell = cells[benchmark][entry]
    assert (cell.acc, cell.judge, cell.bwt) == (acc, judge, bwt)


def test_tables_of_the_paper_are_whole():
    sizes = {t.name: {b: len(c) for b, c in t.cells.items()} for t in paper.tables()}
    split = ("split-cifar10", "split-cifar100", "split-tiny-imagenet")
    assert sizes["main"] == {MNIST: 10, **dict.fromkeys(split, 10)}
    assert sizes["main-3ep"] == {MNIST: 8, **dict.fromkeys(split, 8)}
    assert sizes["ablation"] == {MNIST: 8, **dict.fromkeys(split, 8)}  # (b) has two rows
    assert sizes["layerwise"] == {MNIST: 6, **dict.fromkeys(split, 6)}
    assert sizes["class-incremental"] == {"class-cifar100": 12}


def test_every_cell_has_a_preset_of_its_name():
    for published in paper.tables():
        for benchmark, cells in published.cells.items():
            assert {f"{benchmark}/{entry}" for entry in cells} <= set(presets.available())


# Finding and naming -----------------------------------------------------------------------------


def test_runs_are_found_once_whatever_is_named(runs):
    folder = runs / MNIST / "gem" / "seed-0"
    assert len(collect([runs]).runs) == 8
    assert len(collect([runs, folder, folder / "result.json"]).runs) == 8
    assert [run.finished for run in collect([runs / MNIST / "gem"]).runs] == [True, False]


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"RUNS: .*nothing does not exist; give run folders"):
        collect([tmp_path / "nothing"])


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("result.json", "{", "result.json is not JSON"),
        ("config.json", "[]", "config.json does not hold a table"),
        ("result.json", "{}", "result.json is damaged: it has no accuracy_matrix"),
        ("result.json", '{"accuracy_matrix": []}', "key 'scenario' is missing"),
        ("config.json", "{}", "key 'benchmark' is missing"),
        (
            "config.json",
            '{"benchmark": "x", "method": "y", "seed": "x", "options": {}}',
            "seed='x' in the configuration has the type str: expected int",
        ),
        (
            "config.json",
            '{"benchmark": "x", "method": "y", "seed": 0, "options": null}',
            "options=None in the configuration has the type NoneType: expected dict",
        ),
        (
            "config.json",
            '{"benchmark": "x", "method": "y", "seed": 0, "options": {}, "stream": []}',
            "stream=[] in the configuration has the type list: expected dict",
        ),
        (
            "result.json",
            '{"scenario": "domain", "accuracy_matrix": [[80.0]]}',
            "accuracy_matrix holds numbers outside 0 to 1",
        ),
    ],
)
def test_a_damaged_run_is_reported_and_leaves_the_others_alone(runs, file, content, reason):
    (runs / MNIST / "gem" / "seed-0" / file).write_text(content)
    found = collect([runs])
    assert len(found.runs) == 7
    assert len(found.problems) == 1
    assert reason in found.problems[0]
    # Text from files is escaped, so that it cannot format the page.
    escaped = reason.replace("[", r"\[").replace("]", r"\]").replace("_", r"\_")
    page = render(build(found, {}), "Report")
    assert reason in page or escaped in page


def test_a_half_written_line_of_the_log_is_left_out(tmp_path):
    folder, _ = write_run(tmp_path, f"{MNIST}/gem", steps=[{"step": 3, "task": 1}])
    with (folder / "steps.jsonl").open("a") as file:
        file.write('{"step": 4, "ta')
    assert collect([folder]).runs[0].progress == "in task 2, step 3"


def test_runs_of_an_alias_and_of_its_preset_are_one_row(tmp_path):
    write_run(tmp_path, f"{MNIST}/ours", 0, matrix(0.8))
    write_run(tmp_path, f"{MNIST}/g", 1, matrix(0.9))
    (row,) = group(collect([tmp_path]).runs)
    assert row.seeds == [0, 1]
    assert row.name.presets == (f"{MNIST}/ours",)


@pytest.mark.parametrize("changes", [{}, {"lr": 0.5}])
def test_a_run_stored_under_a_letter_has_the_name_of_its_preset(changes):
    config = to_plain(presets.find(f"{MNIST}/d", changes))
    stored = {**config, "preset": f"{MNIST}/d", "version": 3}
    ending = "".join(f",{key}={value}" for key, value in changes.items())
    assert str(name_of(stored)) == f"{MNIST}/full{ending}"


def test_every_stored_result_is_in_the_folder_of_its_name():
    folder = Path(__file__).parents[3] / "results"
    if not folder.exists():
        pytest.skip("no stored results in this copy")
    runs = [*collect([folder], logs=False).runs, *collect([folder / TUNING], logs=False).runs]
    assert runs
    for run in runs:
        series, _, entry = str(name_of(run.config)).partition("/")
        assert run.source.parent.parts[-2:] == (series, component(entry))


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("permuted-digits/gem", {}),
        ("permuted-digits/ours", {"options": {"strength": 0.125, "layers": "tensor"}}),
        ("permuted-digits/ours", {"options": {"rank": "full"}, "network_options": {"hidden": [7]}}),
        ("split-digits/single-3ep", {"lr": 0.5, "milestones": [1, 2], "memory": {"batch": 0}}),
    ],
)
def test_the_command_of_a_row_makes_it_again(preset, changes):
    config = presets.find(preset, {"seed": 3, **changes})
    words = shlex.split(name_of(to_plain(config)).command([3]))
    assert words[:2] == ["gradproj", "run"]
    names = words[2 : words.index("--seeds")]
    pairs = words[words.index("--set") + 1 :] if "--set" in words else []
    (job,) = make_jobs(names, seeds=[3], overrides=pairs, arguments={})
    assert to_plain(job.config) | {"preset": ""} == to_plain(config) | {"preset": ""}


def test_a_run_of_an_older_version_lacks_keys_and_keeps_its_name(tmp_path):
    _, config = write_run(tmp_path, f"{MNIST}/gem", 0, matrix(0.8))
    del config["ema"]
    assert name_of(config).entry == "gem"


def test_two_series_of_one_benchmark_are_told_apart(tmp_path):
    for series in ("class-cifar100", "class-cifar100-reduced"):
        write_run(tmp_path, f"{series}/gem", 0, matrix(0.5), scenario="class")
    rows = group(collect([tmp_path]).runs)
    assert [str(row.name) for row in rows] == ["class-cifar100-reduced/gem", "class-cifar100/gem"]
    assert [row.name.label for row in rows] == ["GEM, class-cifar100-reduced", "GEM"]
