"""Reports: runs are found, named, set beside the paper and written the same way each time."""

import html
import json
import re
import shlex
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support.runs import matrix, write_run

from gradproj.experiments import cli, presets
from gradproj.experiments.commands.run import make_jobs
from gradproj.experiments.report import paper
from gradproj.experiments.report.collect import TUNING, collect
from gradproj.experiments.report.content import build
from gradproj.experiments.report.export import export, readme
from gradproj.experiments.report.markdown import render
from gradproj.experiments.report.naming import fingerprint, name_of
from gradproj.experiments.report.notes import read_notes
from gradproj.experiments.report.page import render_page
from gradproj.experiments.report.rows import group
from gradproj.experiments.schema import to_plain

ROOT = Path(__file__).parents[2]
MNIST = "mnist-permutations"


@pytest.fixture
def runs(tmp_path):
    """Ours with three seeds, GEM with one and one unfinished, the control, and a change."""
    root = tmp_path / "runs"
    for seed, last in enumerate((0.816, 0.828, 0.840)):
        log = [{"step": i + 1, "task": i // 50, "corrected": 0.5} for i in range(50, 200)]
        write_run(root, f"{MNIST}/ours", seed, matrix(last), steps=log)
    write_run(root, f"{MNIST}/gem", 0, matrix(0.80))
    write_run(root, f"{MNIST}/gem", 1, steps=[{"step": 7, "task": 2}])
    for seed, last in enumerate((0.81, 0.83)):
        write_run(root, f"{MNIST}/replay", seed, matrix(last))
    write_run(root, f"{MNIST}/ours", 0, matrix(0.7), changes={"options": {"strength": 0.125}})
    return root


@pytest.fixture
def no_figures(monkeypatch):
    """Pages without figures, which take most of the time."""
    monkeypatch.setattr("gradproj.experiments.report.page.FIGURES", {})


def sections(root, notes=None):
    return build(collect([root]), notes or {}).sections


def table(section, title):
    return next(t for t in section.tables if t.title == title)


def line(found, method):
    chosen = next(entry for entry in found.lines if entry.cells[0] == method)
    return dict(zip(found.columns, chosen.cells, strict=True)), chosen


# The paper's numbers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "benchmark", "entry", "acc", "spread", "bwt"),
    [
        ("main", MNIST, "single", 57.4, 0.7, None),
        ("main", MNIST, "ours", 82.9, 0.3, None),
        ("main", "split-cifar10", "icarl", 63.9, 0.5, None),
        ("main", "split-cifar100", "gdumb", 60.3, 0.9, None),
        ("main", "split-tiny-imagenet", "agem", 33.5, 0.3, None),
        ("main-3ep", MNIST, "multimodel-3ep", 59.4, 0.5, None),
        ("main-3ep", "split-cifar100", "sgem-3ep", 68.8, 0.2, None),
        ("ablation", "split-cifar10", "e", 77.5, 0.4, None),
        ("ablation", "split-tiny-imagenet", "a", 21.8, 0.4, None),
        ("layerwise", MNIST, "agem-layerwise", 77.1, 0.3, -0.008),
        ("layerwise", "split-tiny-imagenet", "f", 37.6, 0.4, 0.018),
        ("class-incremental", "class-cifar100", "sgem", 59.98, None, None),
    ],
)
def test_numbers_of_the_paper(name, benchmark, entry, acc, spread, bwt):
    cells = next(t for t in paper.tables() if t.name == name).cells
    cell = cells[benchmark][entry]
    assert (cell.acc, cell.spread, cell.bwt) == (acc, spread, bwt)


def test_tables_of_the_paper_are_whole():
    sizes = {t.name: {b: len(c) for b, c in t.cells.items()} for t in paper.tables()}
    split = ("split-cifar10", "split-cifar100", "split-tiny-imagenet")
    assert sizes["main"] == {MNIST: 10, **dict.fromkeys(split, 10)}
    assert sizes["main-3ep"] == {MNIST: 8, **dict.fromkeys(split, 8)}
    assert sizes["ablation"] == {MNIST: 7, **dict.fromkeys(split, 7)}
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
        ("config.json", "[]", "config.json holds no table"),
        ("result.json", "{}", "key 'scenario' is missing"),
        ("config.json", "{}", "key 'benchmark' is missing"),
        (
            "config.json",
            '{"benchmark": "x", "method": "y", "seed": "x", "options": {}}',
            "seed='x' in the configuration is no int",
        ),
        (
            "config.json",
            '{"benchmark": "x", "method": "y", "seed": 0, "options": null}',
            "options=None in the configuration is no dict",
        ),
        (
            "config.json",
            '{"benchmark": "x", "method": "y", "seed": 0, "options": {}, "stream": []}',
            "stream=[] in the configuration is no dict",
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
    assert reason in render(build(found, {}), "Report")


def test_a_half_written_line_of_the_log_is_left_out(tmp_path):
    folder, _ = write_run(tmp_path, f"{MNIST}/gem", steps=[{"step": 3, "task": 1}])
    with (folder / "steps.jsonl").open("a") as file:
        file.write('{"step": 4, "ta')
    assert collect([folder]).runs[0].progress == "in task 2, step 3"


def test_equal_runs_of_two_presets_are_one_row(tmp_path):
    write_run(tmp_path, f"{MNIST}/ours", 0, matrix(0.8))
    write_run(tmp_path, f"{MNIST}/g", 1, matrix(0.9))
    write_run(tmp_path, f"{MNIST}/g", 0, matrix(0.8))
    (row,) = group(collect([tmp_path]).runs)
    assert row.seeds == [0, 1]
    assert {f"{MNIST}/ours", f"{MNIST}/g"} <= set(row.name.presets)


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


# Tables -----------------------------------------------------------------------------------------


def test_a_line_holds_what_a_hand_computes(runs):
    (section,) = sections(runs)
    cells, entry = line(table(section, "Main table, 1 epoch"), "Ours")
    assert cells["paper ACC"] == "82.9 ± 0.3"
    assert cells["measured ACC"] == "82.8 ± 1.2"
    assert cells["difference"] == "-0.1 ●"
    assert entry.status == "within"
    # Three old tasks of four change from 0.8 to 0.816, 0.828, 0.84.
    assert cells["BWT"] == "+0.021 ± 0.009"
    assert cells["seeds"] == "0, 1, 2"
    assert cells["minutes"] == "2.0"
    assert cells["command"] == f"gradproj run {MNIST}/ours --seeds 0 1 2"


def test_half_finished_sets_say_what_is_missing(runs):
    (section,) = sections(runs)
    found = table(section, "Main table, 1 epoch")
    cells, entry = line(found, "GEM")
    assert (cells["measured ACC"], cells["seeds"]) == ("80.0", "0 (1 unfinished)")
    assert entry.status == "below"
    cells, entry = line(found, "EWC")
    assert (cells["measured ACC"], entry.row) == ("no run", None)
    assert section.unfinished == (f"{MNIST}/gem, seed 1: in task 3, step 7",)
    assert "Main table, 3 epochs: no run of any of its cells" in section.missing
    assert "Main table, 1 epoch: GEM" in section.unexplained
    assert section.title == f"{MNIST} (domain-incremental)"


def test_only_unfinished_runs_make_a_report_too(tmp_path):
    write_run(tmp_path, f"{MNIST}/gem", 1)
    (section,) = sections(tmp_path)
    assert line(table(section, "Main table, 1 epoch"), "GEM")[0]["measured ACC"] == "unfinished"
    assert section.unfinished == (f"{MNIST}/gem, seed 1: not begun",)
    assert "unfinished" in render_page(build(collect([tmp_path]), {}))


def test_no_runs_make_a_report_that_says_so(tmp_path):
    assert "No runs were found" in render_page(build(collect([tmp_path]), {}))


def test_rows_outside_the_paper_are_listed_apart(runs):
    (section,) = sections(runs)
    found = table(section, "Beside the paper's tables")
    labels = [entry.cells[0] for entry in found.lines]
    assert labels == ["Ours, strength=0.125", "Replay alone (control)"]


def test_the_control_is_taken_seed_by_seed(runs):
    (section,) = sections(runs)
    found = table(section, "What the projection adds")
    cells, _ = line(found, "Ours")
    assert cells["seeds"] == "0, 1"
    # 81.6 − 81 and 82.8 − 83.
    assert cells["difference"] == "+0.20 ± 0.57"
    assert [entry.cells[0] for entry in found.lines] == ["GEM", "Ours"]


def test_a_matrix_with_unmeasured_rows_has_acc_alone(tmp_path):
    R = [[None] * 3, [None] * 3, [0.7, 0.8, 0.6]]
    write_run(tmp_path, f"{MNIST}/gdumb", 0, R)
    (section,) = sections(tmp_path)
    cells, _ = line(table(section, "Main table, 1 epoch"), "GDumb")
    assert (cells["measured ACC"], cells["BWT"], cells["forgetting"]) == ("70.0", "–", "–")
    assert "GDumb" in render_page(build(collect([tmp_path]), {}))


def test_averaged_weights_are_reported_apart(tmp_path):
    for entry, acc, averaged in (("gem", 0.8, 0.85), ("replay", 0.82, 0.84)):
        extra = {"averaged_accuracy_matrix": matrix(averaged)}
        write_run(tmp_path, f"{MNIST}/{entry}", 0, matrix(acc), changes={"ema": 0.99}, **extra)
    (section,) = sections(tmp_path)
    gem, control = table(section, "Exponential average of the weights").lines
    assert gem.cells == ("GEM, ema=0.99", "0.99", "80.0", "85.0", "+5.00", "+1.00", "0")
    assert control.cells[-3:] == ("+2.00", "–", "0")


def test_class_incremental_runs_are_judged_by_their_own_metric(tmp_path):
    R = matrix(0.6)
    write_run(tmp_path, "class-cifar100/gem", 0, R, scenario="class")
    (section,) = sections(tmp_path)
    assert section.title == "class-cifar100 (class-incremental)"
    cells, entry = line(table(section, "Class-incremental CIFAR-100"), "GEM")
    # 0.8 after each of three steps, 0.6 after the last; the paper gives no spread to judge by.
    assert cells["measured average incremental accuracy"] == "75.0"
    assert cells["difference"] == "+13.1"
    assert entry.status == ""


# Notes ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_figures")
def test_notes_are_shown_and_explain(runs, tmp_path):
    file = tmp_path / "notes.toml"
    file.write_text(f'"{MNIST}/gem" = """the margin\n  <b>"""\n')
    notes = read_notes(file)
    (section,) = sections(runs, notes)
    assert "Main table, 1 epoch: GEM" not in section.unexplained
    report = build(collect([runs]), notes)
    assert "[1] GEM: the margin <b>" in render(report, "Report")
    page = render_page(report)
    assert "the margin &lt;b&gt;" in page


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('"mnist-permutations/gme" = "x"', "did you mean 'mnist-permutations/gem'"),
        ('"mnist-permutations/gem" = 3', 'write the note as "mnist-permutations/gem" = "text"'),
        ("= 3", "notes.toml: Invalid"),
    ],
)
def test_wrong_notes_are_refused(tmp_path, text, match):
    (tmp_path / "notes.toml").write_text(text)
    with pytest.raises(ValueError, match=match):
        read_notes(tmp_path / "notes.toml")


# Pages and files --------------------------------------------------------------------------------


class Outside(HTMLParser):
    """Collects what a page would fetch, and all identifiers."""

    def __init__(self):
        super().__init__()
        self.fetched, self.ids, self.references = [], [], []

    def handle_starttag(self, tag, attrs):
        for key, value in attrs:
            if key == "id":
                self.ids.append(value)
            elif key in ("src", "href", "xlink:href"):
                (self.references if value.startswith("#") else self.fetched).append(value)
        if tag in ("script", "link", "iframe"):
            self.fetched.append(tag)


def test_the_page_needs_nothing_else(runs):
    page = render_page(build(collect([runs]), {}))
    seen = Outside()
    seen.feed(page)
    assert [value for value in seen.fetched if not value.startswith("data:")] == []
    assert len(seen.ids) == len(set(seen.ids))
    assert {value[1:] for value in seen.references} <= set(seen.ids)
    assert "#010203" not in page
    for title in ("Average accuracy over tasks", "ACC against BWT", "Forgetting of each task",
                  "Share of layers corrected", "Accuracy matrices"):  # fmt: skip
        assert f"<figcaption>{title}" in page


def test_names_in_a_run_are_shown_as_they_are(tmp_path):
    name = '"><script src="x"></script>$\\nothing$'
    folder, config = write_run(tmp_path, f"{MNIST}/gem", 0, matrix(0.8))
    changed = config | {"benchmark": name, "network": name}
    (folder / "config.json").write_text(json.dumps(changed))
    page = render_page(build(collect([tmp_path]), {}))
    seen = Outside()
    seen.feed(page)
    assert [value for value in seen.fetched if not value.startswith("data:")] == []
    assert html.escape(f"Average accuracy over tasks: {name} (domain") in page


def test_a_page_of_many_rows_is_drawn(tmp_path):
    for number in range(1, 19):
        changes = {"options": {"strength": number / 20}}
        write_run(tmp_path, f"{MNIST}/first-k", 0, matrix(0.8), changes=changes)
    assert "FirstK, strength=0.9" in render_page(build(collect([tmp_path]), {}))


def test_many_rows_find_their_controls_in_little_time(tmp_path, monkeypatch):
    count, asked = 12, []
    for number in range(count):
        write_run(tmp_path, f"{MNIST}/ours", 0, matrix(0.8), changes={"lr": (number + 1) / 100})
    monkeypatch.setattr(
        "gradproj.experiments.report.rows.fingerprint",
        lambda config: asked.append(1) or fingerprint(config),
    )
    build(collect([tmp_path]), {})
    assert len(asked) < 8 * count


def test_exported_runs_say_the_same(runs, tmp_path):
    kept = tmp_path / "kept"
    written = export(collect([runs]).runs, kept)
    assert len(written) == 7
    assert kept / MNIST / "ours" / "seed-2.json" in written
    assert kept / MNIST / "ours,options.strength=0.125" / "seed-0.json" in written
    shutil.rmtree(runs / MNIST / "gem" / "seed-1")  # Unfinished, hence not kept.
    folders, files = (build(collect([path]), {}) for path in (runs, kept))
    assert render(files, "x") == render(folders, "x")
    one = (runs / MNIST / "ours" / "seed-1", kept / MNIST / "ours" / "seed-1.json")
    folder, file = (render_page(build(collect([path]), {})) for path in one)
    assert "Share of layers corrected" in folder
    assert file == folder


def test_equal_runs_give_equal_bytes_in_any_order(runs):
    folders = sorted(path.parent for path in runs.rglob("config.json"))
    one, two = (build(collect(paths), {}) for paths in (folders, folders[::-1]))
    assert render(one, "x") == render(two, "x")


def test_a_damaged_kept_file_stops_the_readme(runs, tmp_path):
    (path, *_) = export(collect([runs]).runs, tmp_path / "kept")
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"--results: .* mend or remove that file"):
        readme(tmp_path / "kept")


def test_the_committed_readme_is_what_the_committed_files_give():
    folder = ROOT / "results"
    if not list(folder.rglob("*.json")):
        pytest.skip("no results are kept here")
    for kept in (folder, folder / TUNING):
        if kept.exists():
            assert (kept / "README.md").read_text(encoding="utf-8") == readme(kept)


# The command ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_figures")
def test_the_command_writes_page_tables_and_files(runs, tmp_path, capsys):
    out, kept = tmp_path / "out", tmp_path / "kept"
    assert cli.main(["report", str(runs), "--out", str(out), "--results", str(kept)]) == 0
    assert (out / "report.html").read_text().startswith("<!doctype html>")
    assert (out / "report.md").read_text().startswith("# Runs beside the paper\n")
    first = (kept / "README.md").read_text()
    assert "7 runs kept" in capsys.readouterr().out
    assert cli.main(["report", "--results", str(kept)]) == 0
    assert (kept / "README.md").read_text() == first
    content = json.loads((kept / MNIST / "gem" / "seed-0.json").read_text())
    assert content["accuracy_matrix"] == matrix(0.80)
    assert content["config"]["method"] == "gem"


def test_the_command_without_runs_says_what_to_do(capsys):
    assert cli.main(["report"]) == 2
    assert re.search("RUNS is empty; name run folders", capsys.readouterr().err)


def test_the_command_fails_where_it_finds_no_runs(tmp_path, capsys):
    assert cli.main(["report", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    assert f"no runs found in {tmp_path}" in capsys.readouterr().err
    (tmp_path / "other.json").write_text("{}")
    assert cli.main(["report", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    assert "other.json: key 'config' is missing" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# Sweeps -----------------------------------------------------------------------------------------


def swept_runs(root):
    """Ours at four ranks, of which two are presets' own, and the control."""
    for rank, last in ((1, 0.80), (8, 0.83), ("full", 0.82)):
        for seed in (10, 11):
            write_run(
                root, f"{MNIST}/ours", seed, matrix(last), changes={"options": {"rank": rank}}
            )
    for seed in (10, 11):
        write_run(root, f"{MNIST}/ours", seed, matrix(0.81))
        write_run(root, f"{MNIST}/replay", seed, matrix(0.80))


def test_rows_that_differ_in_one_value_are_a_sweep(tmp_path):
    swept_runs(tmp_path)
    (section,) = sections(tmp_path)
    found = table(section, "Ours: rank")
    assert [entry.cells[:2] for entry in found.lines] == [
        ("1", "80.0 ± 0.0"),
        ("5", "81.0 ± 0.0"),
        ("8", "83.0 ± 0.0"),
        ("full", "82.0 ± 0.0"),
    ]
    cells, _ = line(found, "8")
    assert (cells["ACC over replay alone"], cells["seeds"]) == ("+3.00 ± 0.00", "10, 11")
    assert [t.title for t in section.tables if t.swept] == ["Ours: rank"]
    assert "ACC and BWT against rank" in render_page(build(collect([tmp_path]), {}))


def test_runs_for_tuning_stay_apart_from_those_reported(runs, tmp_path):
    kept = tmp_path / "results"
    export(collect([runs]).runs, kept)
    alone = readme(kept)
    swept_runs(tmp_path / "more")
    export(collect([tmp_path / "more"]).runs, kept / "tuning")
    assert readme(kept) == alone
    assert len(collect([kept]).runs) == len(collect([runs]).runs) - 1  # one is unfinished
    tuned = readme(kept / "tuning")
    assert "### Ours: rank" in tuned
    assert "Main table" not in tuned
