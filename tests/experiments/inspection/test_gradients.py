"""Inspection: what it says of a layer is what the gradients themselves give."""

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from gradproj.experiments import cli
from gradproj.experiments.inspection.gradients import Inspection, LayerView, measure, short_run
from gradproj.experiments.inspection.subjects import from_benchmark, from_factory
from gradproj.experiments.reports.figures import inspection, style


def squares(model, x, y):
    return (model(x) - y).square().mean()


def batches(tasks, seed=0, features=5):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return [(draw(6, features), draw(6, 2)) for _ in range(tasks)]


def net(features=5):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(features, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def gradient(model, batch, names):
    """One backward call: the slow way that people know."""
    model.zero_grad()
    squares(model, *batch).backward()
    named = dict(model.named_parameters())
    row = np.concatenate([named[name].grad.flatten().numpy() for name in names])
    model.zero_grad()
    return row


def view(G):
    """A layer with these gradients at one moment: old tasks, then the new one."""
    return LayerView("layer", G.shape[1], (G @ G.T)[None])


def test_a_layer_is_measured_as_its_gradients_are():
    model, data = net(), batches(5)
    found = measure(model, squares, [(data[4], data[:4])])
    assert [layer.name for layer in found.layers] == ["0", "2"]
    assert [layer.size for layer in found.layers] == [24, 10]
    members = (["0.weight", "0.bias"], ["2.weight", "2.bias"])
    for layer, names in zip(found.layers, members, strict=True):
        G = np.stack([gradient(model, batch, names) for batch in data])
        norms = np.linalg.norm(G, axis=1)
        np.testing.assert_allclose(layer.old_norms[0], norms[:4], rtol=1e-12)
        np.testing.assert_allclose(layer.new_norms[0], norms[4], rtol=1e-12)
        np.testing.assert_allclose(layer.cosines, G @ G.T / np.outer(norms, norms), rtol=1e-9)
        specific = G[:4] - G[:4].mean(axis=0)
        values = np.linalg.svd(specific, compute_uv=False)[:3] ** 2
        np.testing.assert_allclose(layer.spectrum, values / values.sum(), rtol=1e-9)
        share = np.sum(specific**2) / np.sum(G[:4] ** 2)
        np.testing.assert_allclose(layer.specific_share, share, rtol=1e-9)
        assert layer.conflict == float(G[4] @ G[:4].mean(axis=0) < 0)
        expected = np.linalg.norm(G[:4].sum(axis=0)) / norms[4]
        np.testing.assert_allclose(layer.replay_size, expected, rtol=1e-9)


def test_the_whole_network_is_its_layers_together():
    model, data = net(), batches(4)
    moments = [(data[3], data[:3])]
    parts, whole = (measure(model, squares, moments, layers) for layers in ("module", "all"))
    np.testing.assert_allclose(parts.whole.products, whole.layers[0].products, rtol=1e-12)
    assert parts.whole.size == whole.layers[0].size


def test_the_rank_is_the_least_that_keeps_the_share():
    # Old tasks ±a e1, ±b e2 around zero: the specific part has squares 2a², 2b².
    G = np.array([[3.0, 0, 0], [-3, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1]])
    layer = view(G)
    np.testing.assert_allclose(layer.spectrum, [0.9, 0.1, 0.0], atol=1e-12)
    assert [layer.rank_for(share) for share in (0.5, 0.9, 0.91, 1.0)] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    "G",
    [np.ones((4, 6)), np.full((4, 6), 1e-3), np.zeros((4, 6))],
    ids=["equal", "equal and small", "zero"],
)
def test_tasks_that_agree_have_no_specific_part(G):
    layer = view(G)
    assert layer.rank_for(0.9) == 0
    assert not layer.spectrum.any()
    assert layer.specific_share == pytest.approx(0, abs=1e-12)
    assert np.isfinite(layer.cosines).all()
    assert np.isfinite(layer.replay_size)


def test_a_layer_smaller_than_the_directions_is_named():
    small, large = view(np.eye(5)[:, :3]), view(np.eye(5, 9))
    assert (small.used_up, large.used_up) == (True, False)
    small = LayerView("bias", small.size, small.products)
    advice = inspection.advise(Inspection((small, large)))
    assert any(line.startswith("layers: bias have at most as many parameters") for line in advice)


def test_measuring_leaves_the_model_as_it_was():
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    model[0].bias.requires_grad_(False)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    data = batches(3)
    found = measure(model, squares, [(data[2], data[:2])])
    assert [layer.size for layer in found.layers] == [20, 8, 10]
    assert all(parameter.grad is None for parameter in model.parameters())
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])


def test_a_short_run_trains_and_begins_its_batches_again():
    model, data = net(), batches(4)
    before = model[0].weight.clone()
    tasks = [[data[0]], [data[1]], iter([data[2], data[3]])]
    found = short_run(model, squares, tasks, steps=3, moments=5)
    assert found.layers[0].products.shape == (5, 3, 3)
    assert not torch.equal(model[0].weight, before)
    again = short_run(net(), squares, [[data[0]], [data[1]], data[2:]], steps=3, moments=5)
    np.testing.assert_array_equal(found.whole.products, again.whole.products)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"tasks": 2}, "tasks holds 2; give at least two old tasks and a new one"),
        ({"steps": -1}, "steps=-1 must be at least 0"),
        ({"moments": 0}, "moments=0 must be at least 1"),
        ({"empty": True}, r"tasks\[1\] has no batches"),
        ({"bare": True}, r"tasks\[0\] has a batch of type Tensor: expected a tuple"),
    ],
)
def test_a_short_run_refuses_what_it_cannot_do(arguments, match):
    tasks = [[batch] for batch in batches(arguments.pop("tasks", 3))]
    if arguments.pop("empty", False):
        tasks[1] = []
    if arguments.pop("bare", False):
        tasks[0] = [torch.ones(2, 3)]
    with pytest.raises(ValueError, match=match):
        short_run(net(), squares, tasks, **{"steps": 1, "moments": 1, **arguments})


@pytest.mark.parametrize(
    ("moments", "match"),
    [
        ([], "moments is empty"),
        ([(batches(1)[0], batches(1))], "moments has 1 old batches"),
    ],
)
def test_measure_refuses_too_little(moments, match):
    with pytest.raises(ValueError, match=match):
        measure(net(), squares, moments)


def test_a_split_benchmark_trains_only_the_outputs_of_each_task():
    changes = {"stream": {"tasks": 5, "samples": 20}, "network_options": {"hidden": [6]}}
    subject = from_benchmark("split-digits", changes, tasks=3)
    assert len(subject.tasks) == 3
    x, y, mask = next(iter(subject.tasks[1]))
    assert torch.isfinite(mask).nonzero().flatten().tolist() == [2, 3]
    assert set(y.tolist()) <= {2, 3}
    assert torch.isfinite(subject.loss(subject.model, x, y, mask))


FACTORY = """
import torch
from torch import nn

def subject():
    tasks = [[(torch.randn(4, 3),)] for _ in range(4)]
    return nn.Linear(3, 2), lambda model, x: model(x).square().mean(), tasks

def wrong():
    return 3
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_model_for_test.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    return "own_model_for_test"


def test_the_command_takes_a_model_of_ones_own(own_module, capsys):
    command = ["inspect", "--factory", f"{own_module}:subject", "--moments", "2", "--steps", "2"]
    assert cli.main([*command, "--out", "own[bold].svg"]) == 0
    out = capsys.readouterr().out
    assert "figure: own[bold].svg" in out
    assert f"{own_module}:subject" in out
    assert "rank: 90% of the task-specific part" in out
    with open("own[bold].svg") as file:
        assert "<svg" in file.read()


def test_the_command_takes_the_first_tasks_of_ones_own(own_module, capsys):
    command = ["inspect", "--factory", f"{own_module}:subject", "--moments", "2", "--steps", "2"]
    assert cli.main([*command, "--tasks", "3"]) == 0
    assert " 1/1 " in capsys.readouterr().out


@pytest.mark.parametrize("option", [["--set", "lr=3"], ["--data-dir", "data"]])
def test_options_of_a_benchmark_are_refused_for_ones_own(option, own_module, capsys):
    assert cli.main(["inspect", "--factory", f"{own_module}:subject", *option]) == 2
    assert f"{option[0]} is for benchmarks; with --factory" in capsys.readouterr().err


@pytest.mark.parametrize("tasks", ["2", "-3"])
def test_fewer_than_three_tasks_are_refused(tasks, capsys):
    with pytest.raises(SystemExit):
        cli.main(["inspect", "--tasks", tasks])
    assert f"--tasks: {tasks} is too small; use a number >= 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "match"),
    [
        ("nothing", "write module:object"),
        ("no_such_module_here:subject", "cannot be loaded: No module named"),
        ("own_model_for_test:other", "cannot be loaded: module .* has no attribute 'other'"),
        ("own_model_for_test:wrong", r"must return \(model, loss, tasks\)"),
    ],
)
@pytest.mark.usefixtures("own_module")
def test_a_wrong_factory_is_named(path, match):
    with pytest.raises(ValueError, match=match):
        from_factory(path, 0.1)


def test_the_command_works_without_data(tmp_path, capsys):
    out = tmp_path / "inspect.png"
    command = ["inspect", "--tasks", "4", "--steps", "2", "--moments", "2", "--out", str(out)]
    assert cli.main([*command, "--set", "network_options.hidden=[8]"]) == 0
    assert out.stat().st_size > 10_000
    assert "permuted-digits (domain-incremental), mlp" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lr", "-1"], "--lr: -1 is out of range; use a number > 0"),
        (["--share", "1.5"], "--share: 1.5 is out of range; use a number > 0 and <= 1"),
        (["--share", "nan"], "--share: nan is out of range"),
        (["--layers", "foo"], "--layers: 'foo' is not known; use one of"),
        (["--steps", "-1"], "--steps: -1 is too small; use a number >= 0"),
        (["--moments", "0"], "--moments: 0 is too small; use a number >= 1"),
    ],
)
def test_wrong_arguments_are_refused_before_the_work(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["inspect", *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_a_figure_of_an_unknown_kind_is_refused_before_the_work(capsys):
    assert cli.main(["inspect", "--out", "a.xyz"]) == 2
    assert "--out a.xyz: the suffix .xyz is not a known format" in capsys.readouterr().err


def test_the_whole_specific_part_is_advised_as_the_rank_that_keeps_it():
    found = measure(net(), squares, [(batches(4)[3], batches(4)[:3])])
    assert "rank=None chooses these" in inspection.advise(found, 1.0)[0]
    assert "rank=0.9 chooses these" in inspection.advise(found, 0.9)[0]


def test_a_loss_that_is_no_number_is_named():
    with pytest.raises(
        ValueError, match=r"loss\(model, \*batch\) gave \(6, 2\); it must give a sc"
    ):
        measure(net(), lambda model, x, _: model(x), [(batches(4)[3], batches(4)[:3])])


def test_a_rate_that_makes_it_diverge_is_named(tmp_path, capsys):
    assert cli.main(["inspect", "--lr", "1e9", "--out", str(tmp_path / "inspect.png")]) == 2
    message = capsys.readouterr().err
    assert "hold NaN or infinity: the model diverged" in message
    assert "lower the learning rate" in message


def test_the_table_fits_80_columns_and_loses_no_number():
    layer = LayerView("a name of some length", 1_234_567, view(1e-5 * np.eye(4, 9)).products)
    console = Console(width=80)
    with console.capture() as capture:
        console.print(inspection.tabulate(Inspection((layer,)), "wide"))
    text = capture.get()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    # The name may be folded.
    for cell in ("a name of some", "1,234,567", " 1e-05 ", " 2/2 "):
        assert cell in text


def test_many_layers_are_drawn():
    layers = tuple(LayerView(f"layer {i}", 9, view(np.eye(4, 9) + i).products) for i in range(20))
    with style.styled():
        figure = inspection.draw(Inspection(layers), "many")
        figure.canvas.draw()
    assert len(figure.axes[0].get_yticklabels()) == 20
