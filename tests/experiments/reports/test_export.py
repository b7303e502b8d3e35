"""Runs that are kept as small files."""

import json
import shutil

import pytest
from support.runs import matrix, write_run

from gradproj.experiments.reports.collect import collect
from gradproj.experiments.reports.export import export
from gradproj.experiments.runs import presets
from gradproj.experiments.runs.runner import run

QUICK = {"stream": {"tasks": 2, "samples": 20}, "network_options": {"hidden": [4]}}


def test_different_runs_of_one_name_are_not_written_over_each_other(tmp_path):
    for method in ("joint", "single"):
        config = presets.find("permuted-digits/single", {**QUICK, "method": method})
        run(config, tmp_path / "runs" / method)
    with pytest.raises(ValueError, match=r"joint and .*single differ and would both be kept as"):
        export(collect([tmp_path / "runs"]).runs, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_the_same_run_found_twice_is_kept_once(tmp_path):
    run(presets.find("permuted-digits/single", QUICK), tmp_path / "runs" / "one")
    shutil.copytree(tmp_path / "runs" / "one", tmp_path / "runs" / "two")
    assert len(export(collect([tmp_path / "runs"]).runs, tmp_path / "kept")) == 1


def test_files_of_ones_own_code_have_names_for_every_file_system(tmp_path):
    folder, config = write_run(tmp_path / "runs", "permuted-digits/single", 0, matrix(0.8))
    changes = {"preset": "", "method": "mine:Method", "network": "mine:net"}
    (folder / "config.json").write_text(json.dumps(config | changes))
    (path,) = export(collect([tmp_path / "runs"]).runs, tmp_path)
    assert path == tmp_path / "permuted-digits" / "mine-Method,network=mine-net" / "seed-0.json"
