"""Reports: what the tables say, beside the paper, beside the control, over a swept value."""

import json

import pytest
from support.reports import MNIST, line, sections, swept_runs, table
from support.runs import matrix, write_run

from gradproj.experiments.reports.collect import collect
from gradproj.experiments.reports.content import build
from gradproj.experiments.reports.export import export
from gradproj.experiments.reports.notes import read_notes
from gradproj.experiments.reports.render.markdown import NOT_LEARNED, render
from gradproj.experiments.reports.render.page import render_page


def test_a_line_holds_what_a_hand_computes(runs):
    (section,) = sections(runs)
    cells, entry = line(table(section, "Main table, 1 epoch"), "Ours")
    assert cells["paper ACC"] == "82.9 ± 0.3"
    assert cells["measured ACC"] == "82.8 ± 1.2"
    assert cells["difference"] == "-0.1 ●"
    assert entry.status == "within"
    # Three old tasks of four change from 0.8 to 0.816, 0.828, 0.84.
    assert cells["BWT ÷ T"] == "+0.021 ± 0.009"
    assert cells["BWT ÷ (T−1)"] == "+0.028 ± 0.012"
    assert (cells["γ"], "λ" in cells) == ("0.5", False)
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


def test_runs_that_did_not_learn_a_task_are_named(tmp_path):
    write_run(tmp_path, f"{MNIST}/ours", 0, matrix(0.8), at_chance=[1, 3])
    write_run(tmp_path, f"{MNIST}/ours", 1, matrix(0.8), at_chance=[])
    write_run(tmp_path, f"{MNIST}/gem", 0, matrix(0.8))
    export(collect([tmp_path]).runs, tmp_path / "kept")
    for folder in (tmp_path / MNIST, tmp_path / "kept"):
        report = build(collect([folder]), {})
        (section,) = report.sections
        found = table(section, "Main table, 1 epoch")
        assert line(found, "Ours")[0]["seeds"] == "0, 1 (1 at chance)"
        assert line(found, "GEM")[0]["seeds"] == "0"
        assert section.not_learned == (f"{MNIST}/ours, seed 0: tasks 2, 4",)
        for text in (render(report, "A title"), render_page(report)):
            assert NOT_LEARNED in text
            assert f"{MNIST}/ours, seed 0: tasks 2, 4" in text


@pytest.mark.parametrize("indices", [[4], [-1], ["1"]])
def test_tasks_that_do_not_exist_are_a_damaged_file(tmp_path, indices):
    write_run(tmp_path, f"{MNIST}/ours", 0, matrix(0.8), at_chance=indices)
    (problem,) = collect([tmp_path]).problems
    assert "are not indices of the 4 tasks" in problem


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
    found = table(section, "Not in the paper's tables")
    labels = [entry.cells[0] for entry in found.lines]
    assert labels == ["Ours, strength=0.125", "Replay alone (control)"]


def test_the_control_is_taken_seed_by_seed(runs):
    (section,) = sections(runs)
    found = section.tables[0]
    assert found.title == "Gain over the control"
    cells, entry = line(found, "Ours")
    assert cells["seeds"] == "0, 1"
    # 81.6 − 81 and 82.8 − 83: mean 0.2, standard error 0.4, and Student's t has 12.71 here.
    assert cells["difference"] == "+0.20"
    assert cells["95 % interval"] == "[-4.88, +5.28]"
    assert entry.status == ""
    assert (cells["control"], cells["γ"]) == ("Replay alone", "0.5")
    cells, entry = line(found, "GEM")
    assert (cells["difference"], cells["95 % interval"], entry.status) == ("-1.00", "one seed", "")
    assert [entry.cells[0] for entry in found.lines] == ["GEM", "Ours"]


@pytest.mark.parametrize(
    ("gains", "difference", "status", "sentence"),
    [
        ((0.03, 0.032, 0.031), "+3.10 ▲", "better", "better in 1 of 1 comparisons, worse in 0"),
        ((-0.03, -0.032, -0.031), "-3.10 ▼", "worse", "better in 0 of 1 comparisons, worse in 1"),
        ((-0.01, 0.02, 0.03), "+1.33", "", "not certainly different in 1"),
    ],
)
@pytest.mark.usefixtures("no_figures")
def test_only_certain_differences_have_a_sign_and_a_colour(
    tmp_path, gains, difference, status, sentence
):
    for seed, gain in enumerate(gains):
        write_run(tmp_path, f"{MNIST}/ours", seed, matrix(0.8 + gain))
        write_run(tmp_path, f"{MNIST}/replay", seed, matrix(0.8))
    report = build(collect([tmp_path]), {}, beside_paper=True)
    (entry,) = report.sections[0].tables[0].lines
    assert (entry.cells[-3], entry.status) == (difference, status)
    assert sentence in report.answer[0]
    colours = [name for name in ("better", "worse") if f'<td class="{name}' in render_page(report)]
    assert colours == ([status] if status else [])


def test_the_control_of_the_equations_as_printed_is_fine_tuning_at_their_rate(tmp_path):
    for entry, acc in (("ours-printed", 0.8), ("agem-printed", 0.7), ("agem", 0.9)):
        write_run(tmp_path, f"{MNIST}/{entry}", 0, matrix(acc))
    write_run(tmp_path, f"{MNIST}/single", 0, matrix(0.5))  # at a rate of its own
    write_run(tmp_path, f"{MNIST}/single", 0, matrix(0.6), changes={"lr": 0.1})
    report = build(collect([tmp_path]), {})
    found = table(report.sections[0], "Gain over the control")
    start = ("Single", "0", "–")
    assert {entry.cells[0]: entry.cells[1:7] for entry in found.lines} == {
        "A-GEM, as printed (strength 0)": (*start, "70.0", "60.0", "+10.00"),
        "Ours, as printed (strength 0)": (*start, "80.0", "60.0", "+20.00"),
    }
    (overview,) = report.overview
    assert overview.title == "Compared with fine-tuning"
    assert [entry.cells[1] for entry in overview.lines] == ["Ours, as printed (strength 0)"]


def test_without_a_control_at_the_same_rate_another_rate_is_named(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path, f"{MNIST}/preserve", seed, matrix(0.8))
        write_run(tmp_path, f"{MNIST}/single", seed, matrix(0.5))
    (overview,) = build(collect([tmp_path]), {}).overview
    (entry,) = overview.lines
    assert entry.note == "The control ran at lr 0.03; there is no run of it at lr 0.2."
    assert dict(zip(overview.columns, entry.cells, strict=True))["control's ACC"] == "50.0 ± 0.0"


def test_the_best_rate_of_the_control_is_shown_beside_the_same_rate(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path, f"{MNIST}/preserve", seed, matrix(0.8))
        write_run(tmp_path, f"{MNIST}/single", seed, matrix(0.4), changes={"lr": 0.2})
        write_run(tmp_path, f"{MNIST}/single", seed, matrix(0.5))
    (overview,) = build(collect([tmp_path]), {}).overview
    cells = dict(zip(overview.columns, overview.lines[0].cells, strict=True))
    assert (cells["control's ACC"], cells["λ"]) == ("40.0 ± 0.0", "3")
    assert cells["control's best ACC (lr)"] == "50.0 ± 0.0 (0.03)"


def test_equal_seeds_that_part_before_there_is_an_old_task_pair_nothing(tmp_path):
    elsewhere = matrix(0.8)
    elsewhere[0][0] += 0.01
    write_run(tmp_path, f"{MNIST}/gem", 0, matrix(0.8))
    write_run(tmp_path, f"{MNIST}/gem", 1, elsewhere)
    write_run(tmp_path, f"{MNIST}/ours", 0, matrix(0.8))
    for seed in (0, 1):
        write_run(tmp_path, f"{MNIST}/replay", seed, matrix(0.7))
    (section,) = sections(tmp_path)
    found = table(section, "Gain over the control")
    assert line(found, "Ours")[1].note == ""
    assert line(found, "GEM")[1].note.startswith("Seeds 1 do not pair")
    assert line(found, "GEM")[0]["95 % interval"] == "not paired"


def test_one_table_shows_what_the_presets_add_everywhere(runs):
    write_run(runs, "permuted-digits/ours-3ep", 0, matrix(0.9))
    write_run(runs, "permuted-digits/replay-3ep", 0, matrix(0.85))
    write_run(runs, f"{MNIST}/full", 0, matrix(0.9))
    report = build(collect([runs]), {})
    (overview,) = report.overview
    assert [entry.cells for entry in overview.lines] == [
        (MNIST, "GEM", "0.5", "–", "81.9 ± 0.4", "80.0", "81.0", "-1.00", "one seed", "0"),
        (MNIST, "Ours", "0.5", "–", "82.9 ± 0.3", "82.2 ± 0.8", "82.0 ± 1.4", "+0.20",
         "[-4.88, +5.28]", "0, 1"),
        ("permuted-digits", "Ours, 3 epochs", "0.5", "–", "–", "90.0", "85.0", "+5.00", "one seed",
         "0"),
    ]  # fmt: skip
    assert [len(found.seeds) for found in overview.comparisons] == [1, 2, 1]
    assert report.answer == (
        "Compared with replay alone, the projection is better in 0 of 3 comparisons, worse in 0 "
        "and not certainly different in 1. One seed only: 2.",
    )


def test_without_a_control_there_is_no_overview(tmp_path):
    write_run(tmp_path, f"{MNIST}/ours", 0, matrix(0.8))
    report = build(collect([tmp_path]), {})
    assert (report.overview, report.answer) == ((), ())
    assert "Compared with" not in render(report, "Report")


def test_a_matrix_with_unmeasured_rows_has_acc_alone(tmp_path):
    R = [[None] * 3, [None] * 3, [0.7, 0.8, 0.6]]
    write_run(tmp_path, f"{MNIST}/gdumb", 0, R)
    (section,) = sections(tmp_path)
    cells, _ = line(table(section, "Main table, 1 epoch"), "GDumb")
    assert (cells["measured ACC"], cells["BWT ÷ T"], cells["forgetting"]) == ("70.0", "–", "–")
    assert "GDumb" in render_page(build(collect([tmp_path]), {}))


def test_averaged_weights_are_reported_apart(tmp_path):
    for entry, acc, averaged in (("gem", 0.8, 0.85), ("replay", 0.82, 0.84)):
        extra = {"averaged_accuracy_matrix": matrix(averaged)}
        write_run(tmp_path, f"{MNIST}/{entry}", 0, matrix(acc), changes={"ema": 0.99}, **extra)
    (section,) = sections(tmp_path)
    gem, control = table(section, "Exponential average of the weights").lines
    assert gem.cells == ("GEM, ema=0.99", "0.99", "80.0", "85.0", "+5.00", "+1.00", "one seed", "0")
    assert control.cells[-4:] == ("+2.00", "–", "–", "0")


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


def test_class_incremental_rows_are_ordered_by_their_average_over_steps(tmp_path):
    for name, last in (("lwf", 0.5), ("lucir", 0.7), ("icarl", 0.6)):
        write_run(tmp_path, f"class-cifar100-mid/{name}", 0, matrix(last), scenario="class")
    (section,) = sections(tmp_path)
    found = table(section, "Not in the paper's tables")
    assert found.columns[:3] == ("method", "average over steps", "measured ACC")
    assert [entry.cells[:3] for entry in found.lines] == [
        ("LUCIR", "77.5", "70.0"),
        ("iCaRL", "75.0", "60.0"),
        ("LwF", "72.5", "50.0"),
    ]
    assert "per step" in found.about


def test_versions_and_processors_are_counted(tmp_path):
    for seed, processor in enumerate(("A", "A", "B", "")):
        folder, _ = write_run(tmp_path, f"{MNIST}/gem", seed, matrix(0.8))
        environment = {"versions": {"torch": "2.13"}, "python": "3.11", "processor": processor}
        (folder / "environment.json").write_text(json.dumps(environment))
    assert build(collect([tmp_path]), {}).made_with == (
        "torch 2.13, Python 3.11 (runs: 1)",
        "torch 2.13, Python 3.11, processor A (runs: 2)",
        "torch 2.13, Python 3.11, processor B (runs: 1)",
    )


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
    assert (cells["minus control"], cells["seeds"]) == ("+3.00 ▲", "10, 11")
    assert [t.title for t in section.tables if t.swept] == ["Ours: rank"]
    assert "ACC and BWT against rank" in render_page(build(collect([tmp_path]), {}))


# Notes ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_figures")
def test_notes_are_shown_and_explain(runs, tmp_path):
    file = tmp_path / "notes.toml"
    file.write_text(f'"{MNIST}/gem" = """the margin\n  <b>"""\n')
    notes = read_notes(file)
    (section,) = sections(runs, notes)
    assert "Main table, 1 epoch: GEM" not in section.unexplained
    report = build(collect([runs]), notes)
    assert "[1] GEM: the margin &lt;b&gt;" in render(report, "Report")
    page = render_page(report)
    assert "the margin &lt;b&gt;" in page


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('"mnist-permutations/gemm" = "x"', "did you mean 'mnist-permutations/gem'"),
        ('"mnist-permutations/gem" = 3', 'write the note as "mnist-permutations/gem" = "text"'),
        ("= 3", "notes.toml: Invalid"),
    ],
)
def test_wrong_notes_are_refused(tmp_path, text, match):
    (tmp_path / "notes.toml").write_text(text)
    with pytest.raises(ValueError, match=match):
        read_notes(tmp_path / "notes.toml")
