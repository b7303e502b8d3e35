"""Reports: pages and kept files, written the same way each time, and the command."""

import html
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support.reports import MNIST, swept_runs
from support.runs import matrix, write_run

from gradproj.experiments import cli
from gradproj.experiments.reports.collect import TUNING, collect
from gradproj.experiments.reports.content import build
from gradproj.experiments.reports.export import export, findings, readme
from gradproj.experiments.reports.naming import fingerprint
from gradproj.experiments.reports.render.markdown import render
from gradproj.experiments.reports.render.page import render_page

ROOT = Path(__file__).parents[3]


class Outside(HTMLParser):
    """Collects what a page would fetch, and all identifiers."""

    def __init__(self):
        super().__init__()
        self.fetched, self.ids, self.references, self.scripts = [], [], [], 0

    def handle_starttag(self, tag, attrs):
        for key, value in attrs:
            if key == "id":
                self.ids.append(value)
            elif key in ("src", "href", "xlink:href"):
                (self.references if value.startswith("#") else self.fetched).append(value)
        if tag in ("link", "iframe"):
            self.fetched.append(tag)
        self.scripts += tag == "script"


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
    # Gain over the control: at the head of the page, and for the benchmark.
    assert page.count("<figcaption>ACC minus that of the control, seed by seed") == 2


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
    assert seen.scripts == 1  # the page's own


def test_a_page_of_many_rows_is_drawn(tmp_path):
    for number in range(1, 19):
        changes = {"options": {"strength": number / 20}}
        write_run(tmp_path, f"{MNIST}/first-k", 0, matrix(0.8), changes=changes)
    assert "FirstK, strength=0.9" in render_page(build(collect([tmp_path]), {}))


def test_a_page_of_many_rows_stays_small(tmp_path):
    for number in range(40):
        changes = {"options": {"strength": (number % 8 + 1) / 20, "rank": number // 8 + 1}}
        write_run(tmp_path, f"{MNIST}/ours", 0, matrix(0.8, tasks=20), changes=changes)
    page = render_page(build(collect([tmp_path]), {}))
    # 600 rows must stay below 8 MB.
    assert len(page) < 1_200_000
    assert "(highest ACC: 28 of 40 rows)" in page


def test_labels_are_text_that_no_renaming_changes(tmp_path):
    name = 'x id="a" url(#b) #010203'
    folder, config = write_run(tmp_path, f"{MNIST}/gem", 0, matrix(0.8))
    (folder / "config.json").write_text(json.dumps(config | {"network": name}))
    page = render_page(build(collect([tmp_path]), {}))
    texts = re.findall(r"<text [^>]*>([^<]*)</text>", page)
    # Long labels are folded into several lines.
    assert name in " ".join(html.unescape(text) for text in texts)


def test_many_rows_find_their_controls_in_little_time(tmp_path, monkeypatch):
    count, asked = 12, []
    for number in range(count):
        write_run(tmp_path, f"{MNIST}/ours", 0, matrix(0.8), changes={"lr": (number + 1) / 100})
    monkeypatch.setattr(
        "gradproj.experiments.reports.rows.fingerprint",
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
    with pytest.raises(ValueError, match=r"--results: .* repair or remove that file"):
        readme(tmp_path / "kept")


def test_the_committed_readme_is_what_the_committed_files_give():
    folder = ROOT / "results"
    if not list(folder.rglob("*.json")):
        pytest.skip("no results are kept here")
    for kept in (folder, folder / TUNING):
        if kept.exists():
            assert (kept / "README.md").read_text(encoding="utf-8") == readme(kept)
    assert (folder / "findings.md").read_text(encoding="utf-8") == findings(folder)


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


# The command ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_figures")
def test_the_command_writes_page_tables_and_files(runs, tmp_path, capsys):
    out, kept = tmp_path / "out", tmp_path / "kept"
    assert cli.main(["report", str(runs), "--out", str(out), "--results", str(kept)]) == 0
    assert (out / "report.html").read_text().startswith("<!doctype html>")
    assert (out / "report.md").read_text().startswith("# Continual learning: report of runs\n")
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
