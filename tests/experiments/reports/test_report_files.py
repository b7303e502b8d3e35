"""Reports: tables as CSV and LaTeX, figures as files."""

import csv

import pytest
from support.reports import MNIST
from support.runs import matrix, write_run

from gradproj.experiments import cli
from gradproj.experiments.reports.collect import collect
from gradproj.experiments.reports.content import build
from gradproj.experiments.reports.render.files import to_csv, to_latex, write_tables


@pytest.fixture
def report(runs):
    return build(collect([runs]), {})


def test_a_csv_file_holds_numbers_that_programs_can_read(report, tmp_path):
    files = {path.name: path for path in write_tables(report, tmp_path, "csv")}
    with files["overview-compared-with-replay-alone.csv"].open(encoding="utf-8") as file:
        gem, ours = csv.DictReader(file)
    assert (ours["method"], float(ours["ACC"]), float(ours["ACC ±"])) == ("Ours", 82.2, 0.8)
    assert (float(ours["difference"]), ours["95 % interval"]) == (0.2, "[-4.88, +5.28]")
    assert (gem["ACC ±"], gem["95 % interval"]) == ("", "one seed")


def test_signs_are_left_out_of_csv_files(report):
    main = next(t for t in report.sections[0].tables if t.title == "Main table, 1 epoch")
    rows = list(csv.DictReader(to_csv(main).splitlines()))
    assert [row["difference"] for row in rows if row["method"] == "Ours"] == ["-0.1"]


def test_text_of_runs_is_not_run_by_spreadsheets_or_latex(tmp_path):
    changes = {"network": "=1+1\\input{x}"}
    write_run(tmp_path, f"{MNIST}/gem", 0, matrix(0.8))
    (folder,) = tmp_path.rglob("seed-0")
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"mlp"', '"=1+1\\\\input{x}"'))
    report = build(collect([tmp_path]), {})
    tables = [table for section in report.sections for table in section.tables]
    assert any(changes["network"] in cell for t in tables for n in t.lines for cell in n.cells)
    for table in tables:
        assert "\\input{" not in to_latex(table)
        cells = [cell for row in csv.reader(to_csv(table).splitlines()) for cell in row]
        assert not any(cell.startswith("=") for cell in cells)


def test_latex_tables_have_as_many_cells_as_columns(report):
    for table in (*report.overview, *report.sections[0].tables):
        lines = to_latex(table).splitlines()
        width = len(lines[1].removeprefix(r"\begin{tabular}{").removesuffix("}"))
        rows = [line for line in lines if line.endswith(r" \\")]
        assert len(rows) == len(table.lines) + 1
        assert {line.replace(r"\&", "").count(" & ") + 1 for line in rows} == {width}


def test_the_command_writes_tables_and_figures(runs, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["report", str(runs), "--out", str(out), "--csv", "--latex", "--figures", "svg"]
    assert cli.main(command) == 0
    names = {path.stem for path in (out / "tables").glob("*.csv")}
    assert names == {path.stem for path in (out / "tables").glob("*.tex")}
    assert "overview-compared-with-replay-alone" in names
    drawn = list((out / "figures").glob("*.svg"))
    assert all(path.read_text(encoding="utf-8").lstrip().startswith("<?xml") for path in drawn)
    assert f"{out / 'figures'}: {len(drawn)} .svg files" in capsys.readouterr().out
    assert any("acc-minus-that-of-the-control" in path.name for path in drawn)


def test_an_unknown_format_of_figures_is_named(runs, tmp_path, capsys):
    assert cli.main(["report", str(runs), "--out", str(tmp_path), "--figures", "doc"]) == 2
    assert "figure.doc" in capsys.readouterr().err
