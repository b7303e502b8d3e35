"""`gradproj list`: an overview that fits a screen, and details with values."""

import pytest

from gradproj.experiments import cli, methods
from gradproj.experiments.runs import presets
from gradproj.experiments.streams.benchmarks import BENCHMARKS


@pytest.fixture
def listed(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments):
        assert cli.main(["list", *arguments]) == 0
        return capsys.readouterr().out.splitlines()

    return call


def test_the_overview_has_one_line_per_name_and_fits_a_screen(listed):
    lines = listed()
    names = [line.split()[0] for line in lines if line.startswith("  ")]
    assert {*BENCHMARKS, *methods.available(), "mnist-permutations-gpm"} <= set(names)
    assert len(names) == len(set(names))
    assert max(map(len, lines)) <= 80
    # 49 names at the time of writing, and a few lines around them.
    assert len(lines) <= 65
    assert "resnet18-small" in "".join(lines)
    assert "list PATTERN" in lines[-1]


@pytest.mark.parametrize("kind", ["benchmarks", "methods", "networks"])
def test_one_kind_is_listed_alone(kind, listed):
    text = "\n".join(listed(kind))
    assert ("split-mnist" in text) == (kind == "benchmarks")
    assert (" gem " in text) == (kind == "methods")
    assert ("resnet32" in text.splitlines()) == (kind == "networks")


def test_presets_are_listed_as_bare_names_for_other_programs(listed):
    assert listed("presets") == list(presets.available())


def test_a_method_is_shown_with_its_options(listed):
    lines = listed("gem")
    assert lines[0].startswith("Method gem: ")
    assert any(line.startswith("  As published") for line in lines)
    assert max(map(len, lines[1:])) <= 80
    assert "  options.strength=1.0" in lines
    assert not any(line.startswith("Method agem") for line in lines)


def test_a_benchmark_is_shown_with_its_values_and_the_presets_that_differ(listed):
    lines = listed("permuted-digits")
    assert lines[0].startswith("Benchmark permuted-digits: permuted digits, 10 tasks")
    assert "  memory.per_task=100" in lines
    (row,) = [line for line in lines if line.startswith("  permuted-digits/single-3ep ")]
    assert row.split()[1:] == ["epochs=3"]


def test_a_preset_is_shown_with_every_value(listed):
    lines = listed("split-digits/ours")
    assert "  options.rank=5" in lines
    assert "  milestones=[]" in lines
    # What is shown can be set: --set reads it as TOML.
    assert "  options.scaled=true" in listed("permuted-digits/preserve")


def test_a_pattern_lists_all_presets_that_match(listed):
    lines = listed("*-digits/ours-3ep")
    names = [line.split()[0] for line in lines if line.strip().partition(" ")[0].count("/")]
    assert names == ["permuted-digits/ours-3ep", "split-digits/ours-3ep"] or lines[0] == (
        "Preset permuted-digits/ours-3ep"
    )
    many = listed("*/ours-3ep")
    assert sum("/ours-3ep" in line for line in many) > 3
    assert max(map(len, many)) <= 80


def test_part_of_a_name_finds_methods(listed):
    heads = [line.partition(":")[0] for line in listed("gem") + listed("preserve")]
    assert "Method preserve" in heads
    assert {"Method agem", "Method sgem"} & {line.partition(":")[0] for line in listed("ge")}


def test_an_unknown_name_is_answered_with_the_nearest(capsys):
    assert cli.main(["list", "ourz"]) == 2
    assert capsys.readouterr().err == "gradproj: name 'ourz' is not known; did you mean 'ours'?\n"
