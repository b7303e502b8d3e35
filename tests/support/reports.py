"""Shared parts of the tests of reports: sets of runs, and a reader of their tables."""

from gradproj.experiments.reports.collect import collect
from gradproj.experiments.reports.content import build
from support.runs import matrix, write_run

MNIST = "mnist-permutations"


def some_runs(root):
    """Ours with three seeds, GEM with one and one unfinished, the control, and a change."""
    for seed, last in enumerate((0.816, 0.828, 0.840)):
        log = [{"step": i + 1, "task": i // 50, "corrected": 0.5} for i in range(50, 200)]
        write_run(root, f"{MNIST}/ours", seed, matrix(last), steps=log)
    write_run(root, f"{MNIST}/gem", 0, matrix(0.80))
    write_run(root, f"{MNIST}/gem", 1, steps=[{"step": 7, "task": 2}])
    for seed, last in enumerate((0.81, 0.83)):
        write_run(root, f"{MNIST}/replay", seed, matrix(last))
    write_run(root, f"{MNIST}/ours", 0, matrix(0.7), changes={"options": {"strength": 0.125}})


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


def sections(root, notes=None):
    return build(collect([root]), notes or {}).sections


def table(section, title):
    return next(t for t in section.tables if t.title == title)


def line(found, method):
    chosen = next(entry for entry in found.lines if entry.cells[0] == method)
    return dict(zip(found.columns, chosen.cells, strict=True)), chosen
