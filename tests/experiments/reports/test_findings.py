"""The findings: numbers of the runs, filled into a text."""

import pytest
from support.reports import MNIST

from gradproj.experiments import cli
from gradproj.experiments.reports.collect import collect
from gradproj.experiments.reports.export import export, findings
from gradproj.experiments.reports.findings import SOURCE


@pytest.fixture
def kept(runs, tmp_path):
    folder = tmp_path / "kept"
    export(collect([runs]).runs, folder)
    return folder


def test_numbers_come_from_the_runs(kept, capsys):
    text = f"{{acc {MNIST}/ours}}; {{gain {MNIST}/ours}}; {{gain {MNIST}/gem}}; {{acc {MNIST}/ewc}}"
    text += (
        f"; {{best {MNIST}/ours}}; {{average {MNIST}/ours}}; {{cells within}} and {{cells below}}"
    )
    (kept / SOURCE).write_text(f"# Text\n{text}\n")
    assert cli.main(["report", "--results", str(kept)]) == 0
    assert str(kept / "findings.md") in capsys.readouterr().out
    assert (
        (kept / "findings.md")
        .read_text(encoding="utf-8")
        .endswith(
            "82.8 ± 1.2; +0.20 [-4.88, +5.28]; -1.00 (one seed); (not run); "
            "+0.20 [-4.88, +5.28]; 80.7 ± 0.3; 2 and 2\n"
        )
    )


@pytest.mark.parametrize("text", ["{bwt a/b}", "{cells good}"])
def test_an_unknown_placeholder_is_named(kept, text):
    (kept / SOURCE).write_text(text)
    with pytest.raises(ValueError, match=rf"{SOURCE}: {text} is not a known placeholder"):
        findings(kept)


def test_a_folder_without_a_text_has_no_findings(kept):
    assert findings(kept) is None
