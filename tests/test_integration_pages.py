"""The programs of the pages in docs/integrations and the examples that they refer to are run."""

import re
import runpy
import warnings
from pathlib import Path

import pytest
from support.libraries import need

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "integrations"
EXAMPLES = ROOT / "examples"
# Which library a page or an example needs; the others need torch alone.
LIBRARIES = {
    "accelerate": "accelerate",
    "transformers": "transformers",
    "lightning": "lightning",
    "avalanche": "avalanche",
    "avalanche_permutations": "avalanche",
    "hugging_face": "transformers",
    "lightning_digits": "lightning",
    "sentence_encoder": "transformers",
}


def blocks(page):
    return re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.S)


def run_page(name):
    """Run the blocks of a page in sequence, and return the names that they define."""
    names = {"__name__": name}
    with warnings.catch_warnings(action="ignore"):  # of the libraries
        exec(compile("\n".join(blocks(PAGES / f"{name}.md")), f"{name}.md", "exec"), names)
    return names


@pytest.mark.parametrize("name", sorted(p.stem for p in PAGES.glob("*.md") if blocks(p)))
def test_the_code_of_a_page_runs(name, tmp_path, monkeypatch):
    need(LIBRARIES.get(name, "torch"))
    monkeypatch.chdir(tmp_path)
    run_page(name)


def test_every_cell_of_the_feature_table_names_tests_that_exist():
    text = (PAGES / "features.md").read_text("utf-8")
    rows = [line.split("|")[2:4] for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 8
    for cell in (cell for row in rows for cell in row):
        assert "::" in cell or "not tested" in cell, cell
    for path, name in re.findall(r"`([\w/]+\.py)::(\w+)`", text):
        source = (ROOT / "tests" / path).read_text("utf-8")
        assert re.search(rf"^ *def {name}\(", source, re.M), f"{path}::{name}"


def run_example(name, capsys, monkeypatch, **options):
    need(LIBRARIES.get(name, "torch"))
    path = EXAMPLES / f"{name}.py"
    assert len(path.read_text("utf-8").splitlines()) < 100
    monkeypatch.syspath_prepend(str(EXAMPLES))  # as when it runs as a script
    with warnings.catch_warnings(action="ignore"):  # of the libraries
        runpy.run_path(str(path))["main"](**options)
    return capsys.readouterr().out.splitlines()


def percentages(line):
    return [float(share) for share in re.findall(r"([\d.]+)%", line)]


def test_hugging_face(capsys, monkeypatch):
    out = run_example("hugging_face", capsys, monkeypatch)
    plain, projected, preserved = (percentages(line) for line in out[-3:])
    assert min(projected) > 95
    assert projected[0] > plain[0] + 10
    assert preserved[0] > plain[0] + 10


def test_lightning_digits(capsys, monkeypatch):
    pytest.importorskip("sklearn", reason="the example's digits come with scikit-learn")
    out = run_example("lightning_digits", capsys, monkeypatch, epochs=3)
    plain, projected, preserved = (percentages(line) for line in out[-3:])
    assert projected[0] > plain[0] + 10
    assert preserved[0] > plain[0] + 10


def test_avalanche_permutations(capsys, monkeypatch):
    pytest.importorskip("sklearn", reason="the example's digits come with scikit-learn")
    out = run_example("avalanche_permutations", capsys, monkeypatch, tasks=3)
    plain, *others = (percentages(line)[0] for line in out)
    assert len(others) == 5
    assert min(others) > plain + 5


def test_avalanche_permutations_of_mnist(capsys, monkeypatch):
    need("avalanche")
    data = pytest.importorskip("gradproj.experiments.data", reason="needs gradproj[experiments]")
    import torch

    draws = torch.Generator().manual_seed(0)
    x, y = torch.randint(256, (60_000, 1, 2, 2), generator=draws).byte(), torch.arange(60_000) % 10
    known = data.Dataset("mnist", x, y, x[:20], y[:20], classes=10)
    monkeypatch.setattr(data, "load", lambda name: {"mnist": known}[name])
    out = run_example("avalanche_permutations", capsys, monkeypatch, data="mnist", tasks=2)
    assert len(out) == 6


def test_sentence_encoder(capsys, monkeypatch):
    out = run_example("sentence_encoder", capsys, monkeypatch, tiny=True)
    assert [line.split(" ACC")[0].rstrip() for line in out[-5:]] == [
        "encoder frozen",
        "fine-tuning, lr 5e-5",
        "fine-tuning, lr 1e-5",
        "replay, 10 texts per task",
        "preserve, no stored text",
    ]
    kept = [float(line.split()[-1]) for line in out[-5:]]
    assert kept[0] == 1.0
    assert all(0 < share <= 1 for share in kept)


def test_unlearning(capsys, monkeypatch):
    pytest.importorskip("sklearn", reason="the example's digits come with scikit-learn")
    out = run_example("unlearning", capsys, monkeypatch)
    before, alone, projected = (percentages(line) for line in out[-3:])
    assert alone[0] < 50 < before[0]
    assert projected[0] < 50
    assert projected[1] > before[1] - 5 > alone[1] + 5


def test_conflicting_losses(capsys, monkeypatch):
    out = run_example("conflicting_losses", capsys, monkeypatch, steps=100)
    plain, symmetric = (percentages(line) for line in out[-2:])
    assert plain[0] > 0
    assert symmetric == [0.0]


def test_the_recipe_of_accelerate_equals_a_plain_loop(tmp_path, monkeypatch):
    """The same two tasks with the bare tools: accumulated gradients, then one step."""
    need("accelerate")
    import torch
    from torch.nn.functional import cross_entropy

    import gradproj as gp
    from gradproj.adapters.torch import EpisodicMemory, Preserver, Projector

    monkeypatch.chdir(tmp_path)
    names = run_page("accelerate")
    torch.manual_seed(0)
    tasks = [(torch.randn(64, 8), torch.randint(3, (64,))) for _ in range(2)]
    layers = torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3)
    projected = torch.nn.Sequential(*layers)
    projector, memory = Projector(projected, gp.GEM()), EpisodicMemory(per_task=32)

    def gradient(model, x, y):
        model.zero_grad()
        for batch in torch.arange(32).split(16):
            (cross_entropy(model(x[batch]), y[batch]) / 2).backward()

    def descend(model):
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad

    def old(task):
        x, y = memory.sample(task, 16)
        cross_entropy(projected(x), y).backward()

    for task, (x, y) in enumerate(tasks):
        for half in (slice(0, 32), slice(32, 64)):
            gradient(projected, x[half], y[half])
            projector.project([lambda t=t: old(t) for t in memory.tasks])
            descend(projected)
        memory.add(task, x, y)
    layers = torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3)
    preserved = torch.nn.Sequential(*layers)
    preserver = Preserver(preserved, strength=3.0)
    for x, y in tasks:
        for half in (slice(0, 32), slice(32, 64)):
            gradient(preserved, x[half], y[half])
            preserver.apply()
            descend(preserved)
        with torch.no_grad(), preserver.observe():
            preserved(x)
        preserver.consolidate()
    for found, expected in zip(names["model"].parameters(), preserved.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    found = names["projector"].model.parameters()
    for one, expected in zip(found, projected.parameters(), strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-4, atol=1e-5)


def test_the_manual_recipe_of_lightning_equals_a_plain_loop(tmp_path, monkeypatch):
    need("lightning")
    import copy

    import torch
    from torch.nn.functional import cross_entropy

    from gradproj.adapters.torch import EpisodicMemory, Projector

    monkeypatch.chdir(tmp_path)
    names = run_page("lightning")
    module, loaders = names["Manual"](), names["loaders"]
    body = copy.deepcopy(module.body)
    optimizer = torch.optim.SGD(body.parameters(), lr=0.1)
    projector, memory = Projector(body), EpisodicMemory(per_task=32)

    def old(task):
        x, y = memory.sample(task, 16)
        cross_entropy(body(x), y).backward()

    for task, loader in enumerate(loaders):
        with warnings.catch_warnings(action="ignore"):
            names["Trainer"](**names["options"]).fit(module, loader)
        module.memory.add(task, *loader.dataset.tensors)
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(body(x), y).backward()
            projector.project([lambda t=t: old(t) for t in memory.tasks])
            optimizer.step()
        memory.add(task, *loader.dataset.tensors)
    assert projector.last.coefficients.any()  # the stored samples had an effect
    for found, expected in zip(module.body.parameters(), body.parameters(), strict=True):
        assert torch.equal(found, expected)
