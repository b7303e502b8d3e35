"""The paper's figures: they run what is missing, and only that."""

import pytest
import torch
from support.runs import matrix, write_run

from gradproj.experiments import cli
from gradproj.experiments.cli import figure
from gradproj.experiments.common.errors import ConfigError, RunError
from gradproj.experiments.reports.figures import FIGURES, request, style
from gradproj.experiments.reports.figures.request import Request, Spec, obtain
from gradproj.experiments.runs import presets
from gradproj.experiments.runs.grid.worker import execute

TINY = ("stream.tasks=3", "stream.samples=20", "network_options.hidden=[6]", "memory.batch=4")


@pytest.fixture
def ran(monkeypatch):
    """Run in this process, and note what was run."""
    names = []

    def execute_all(jobs, show, workers):
        assert workers in (None, 1)
        names.extend(job.name for job in jobs)
        return [execute(job, show) for job in jobs]

    monkeypatch.setattr(request, "execute_all", execute_all)
    monkeypatch.setattr(figure, "execute_all", execute_all)
    threads = torch.get_num_threads()
    yield names
    torch.set_num_threads(threads)


def ask(tmp_path, **arguments):
    return Request(
        **{
            "seeds": (0,),
            "overrides": TINY,
            "ranks": (1,),
            "memory": (5,),
            "strengths": (0.0, 1.0),
            "runs": tmp_path,
            **arguments,
        }
    )


@pytest.mark.parametrize(
    ("name", "runs", "lines"),
    [
        ("k-sweep", 4, 4),
        ("layerwise", 6, 6),
        ("time", 2, 2),
        ("memory-sweep", 7, 7),
        ("strength-sweep", 4, 4),
    ],
)
def test_a_figure_runs_what_it_needs_once(name, runs, lines, ran, tmp_path):
    made = FIGURES[name](ask(tmp_path))
    assert len(set(ran)) == len(ran) == runs
    assert len(made.table.lines) == lines
    assert "permuted-digits (domain-incremental)" in made.table.title
    made.figure.canvas.draw()
    again = FIGURES[name](ask(tmp_path))
    assert len(ran) == runs
    assert [x.cells for x in again.table.lines] == [x.cells for x in made.table.lines]


def test_gradient_magnitudes_need_no_runs(tmp_path, ran):
    made = FIGURES["gradient-magnitudes"](ask(tmp_path))
    assert ran == []
    assert [line.cells[:2] for line in made.table.lines] == [("fc1", "390"), ("head", "70")]
    made.figure.canvas.draw()


def test_old_losses_need_no_runs(tmp_path, ran):
    made = FIGURES["old-losses"](ask(tmp_path))
    assert ran == []
    shortest = [float(cell) for cell in made.table.lines[0].cells]
    assert shortest[0] == 0.001
    # A short step changes the losses as the first order predicts.
    assert shortest[1] == pytest.approx(shortest[2], rel=0.1)
    assert shortest[3] == pytest.approx(shortest[4], rel=0.1)
    made.figure.canvas.draw()


@pytest.mark.parametrize("name", ["k-sweep", "gradient-magnitudes"])
@pytest.mark.parametrize("seed", [0, 5])
def test_a_seed_is_not_changed_by_hand(name, seed, tmp_path):
    with pytest.raises(ConfigError, match=f"use --seeds {seed}"):
        FIGURES[name](ask(tmp_path, overrides=(*TINY, f"seed={seed}")))


def test_runs_of_another_name_and_equal_content_are_used(tmp_path, ran):
    write_run(tmp_path, "mnist-permutations/ours", 0, matrix(0.8))
    wanted = ask(tmp_path, benchmark="mnist-permutations", overrides=(), draw_only=True)
    spec = Spec("ours", ("options.rank=5",))
    assert obtain(wanted, [spec])[spec].seeds == [0]
    assert ran == []


def test_seeds_that_were_not_asked_for_are_left_out(tmp_path):
    for seed in (0, 7):
        write_run(tmp_path, "mnist-permutations/gem", seed, matrix(0.8))
    wanted = ask(tmp_path, benchmark="mnist-permutations", overrides=(), draw_only=True)
    assert obtain(wanted, [Spec("gem")])[Spec("gem")].seeds == [0]


def test_the_papers_values_stand_beside_the_measured(tmp_path):
    for entry in ("full", "layerwise", "gem"):
        write_run(tmp_path, f"mnist-permutations/{entry}", 0, matrix(0.8))
    three = {"epochs": 3}
    for entry in ("full", "layerwise"):
        write_run(tmp_path, f"mnist-permutations/{entry}", 1, matrix(0.8), changes=three)
        write_run(tmp_path / "timed", f"mnist-permutations/{entry}", 0, matrix(0.8), changes=three)
    wanted = ask(tmp_path, benchmark="mnist-permutations", overrides=(), draw_only=True)
    cells = [line.cells for line in FIGURES["time"](wanted).table.lines]
    assert [(c[1], c[2]) for c in cells] == [("286.3", "90.0"), ("253.4", "90.0")]
    cells = [line.cells for line in FIGURES["layerwise"](wanted).table.lines]
    assert [c[:4] for c in cells] == [
        ("GEM", "81.9", "80.0", "+0.017"),
        ("(d) Both constraints", "81.9", "80.0", "+0.017"),
        ("(f) Both constraints, layerwise", "82.9", "80.0", "+0.045"),
    ]


def test_nothing_to_draw_from_is_said(tmp_path):
    with pytest.raises(
        RunError, match=r"no finished run to draw from in .*; leave out --draw-only"
    ):
        FIGURES["layerwise"](ask(tmp_path / "none", draw_only=True))


def test_sweeps_tell_stored_samples(tmp_path):
    for size, last in ((10, 0.6), (256, 0.8)):
        changes = {"memory": {"per_task": size}}
        write_run(tmp_path, "mnist-permutations/replay", 0, matrix(last), changes=changes)
    write_run(tmp_path, "mnist-permutations/preserve", 0, matrix(0.7), stored_per_task=0.0)
    wanted = {"benchmark": "mnist-permutations", "overrides": (), "draw_only": True}
    made = FIGURES["memory-sweep"](ask(tmp_path, memory=(256, 10), **wanted))
    assert [line.cells[:3] for line in made.table.lines] == [
        ("Preserve", "0", "70.0"),
        ("Replay alone (control)", "10", "60.0"),
        ("Replay alone (control)", "256", "80.0"),
    ]
    strength = presets.find("mnist-permutations/preserve").options.strength
    made = FIGURES["strength-sweep"](ask(tmp_path, strengths=(strength,), **wanted))
    assert [line.cells[:4] for line in made.table.lines] == [
        ("Preserve", f"{strength:g}", "0", "70.0")
    ]


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("memory-sweep", {"memory": (0, 10)}, "--memory 0 is too small"),
        ("strength-sweep", {"strengths": (1.0, -0.5)}, "--strengths -0.5 is invalid"),
    ],
)
def test_sweeps_refuse_values_out_of_range(name, arguments, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        FIGURES[name](ask(tmp_path, **arguments))


def test_ranks_start_at_one(tmp_path):
    with pytest.raises(ValueError, match="--ranks 0 is invalid"):
        FIGURES["k-sweep"](ask(tmp_path, ranks=(0, 1)))


def test_a_failed_run_is_named(tmp_path, ran):
    (tmp_path / "timed").mkdir()
    (tmp_path / "timed" / "permuted-digits").write_text("in the way")
    with pytest.raises(RunError, match=r"permuted-digits/full.*seed-0: .*cannot be written"):
        FIGURES["time"](ask(tmp_path))
    assert len(ran) == 2


def test_the_command_writes_figure_and_table(tmp_path, ran, capsys):
    out = tmp_path / "[bold]" / "time.svg"  # no markup
    command = ["figure", "time", "--seeds", "0", "--runs", str(tmp_path), "--out", str(out)]
    assert cli.main([*command, "--set", *TINY]) == 0
    assert len(ran) == 2
    assert "<svg" in out.read_text()
    page = out.with_suffix(".md").read_text()
    assert page.startswith("# Time on permuted-digits (domain")
    assert f"]({out.name})" in page.splitlines()[2]
    text = capsys.readouterr().out
    assert "(f) Both constraints, layerwise" in text
    assert f"{out}, {out.with_suffix('.md')}" in text


def test_a_file_of_an_unknown_kind_is_refused(tmp_path):
    with (
        style.styled(),
        pytest.raises(ValueError, match=r"--out x\.docx: the suffix \.docx is not a known"),
    ):
        style.save(style.figure(1, 1), tmp_path / "x.docx")


def test_runs_made_beside_others_tell_no_time(tmp_path):
    for entry in ("full", "layerwise"):
        write_run(tmp_path, f"mnist-permutations/{entry}", 0, matrix(0.8), changes={"epochs": 3})
    wanted = ask(tmp_path, benchmark="mnist-permutations", overrides=(), draw_only=True)
    with pytest.raises(RunError, match=r"no finished run to draw from in .*timed"):
        FIGURES["time"](wanted)


@pytest.mark.parametrize(("name", "pair"), [("k-sweep", "options.rank=3"), ("time", "epochs=1")])
def test_what_a_figure_varies_is_not_set_by_hand(name, pair, tmp_path, ran):
    with pytest.raises(ValueError, match=f"--set {pair}: this figure sets that value itself"):
        FIGURES[name](ask(tmp_path, overrides=(*TINY, pair)))
    assert ran == []


def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path, capsys, ran):
    arguments = ["figure", "time", "--runs", str(tmp_path), "--out", str(tmp_path / "a.xyz")]
    assert cli.main(arguments) == 2
    assert "--out a.xyz: the suffix .xyz is not a known format" in capsys.readouterr().err
    assert ran == []


def test_a_long_label_is_folded_and_leaves_room_for_the_axes():
    with style.styled():
        made = style.figure(7.4, 3.0)
        axes = made.subplots()
        axes.plot([1, 2], [3, 4], label="ours with a very long list of changed values, " * 5)
        style.legend_beside(axes)
        made.canvas.draw()
    (text,) = axes.get_legend().get_texts()
    assert len(text.get_text().splitlines()) == 3
    assert text.get_text().endswith("…")
    assert axes.get_position().width > 0.5


def test_a_narrow_figure_does_not_fill_the_page():
    with style.embedded():
        made = style.figure(3.0, 2.0)
        made.subplots()
        assert 'style="--natural: 4.2in"' in style.to_svg(made, "name")
