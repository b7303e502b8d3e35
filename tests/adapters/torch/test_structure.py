"""The inside of the adapter: public names of the core only, few calls on the way to the core."""

import ast
import inspect
import traceback
from pathlib import Path

import pytest
import torch
from torch_reference import mlp

import gradproj as gp
from gradproj.adapters import torch as adapter
from gradproj.adapters.torch import Projector

FOLDER = Path(inspect.getfile(adapter)).parent


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: path.name)
def test_no_private_name_of_the_core_is_used(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gradproj":
            inside = (node.module or "").startswith("gradproj.adapters.torch")
            assert inside, f"{path.name}: write `import gradproj as gp` and use its public names"
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("gradproj")]
            assert names in ([], ["gradproj"]), path.name
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "gp"
        ):
            assert node.attr in gp.__all__, f"{path.name}: gp.{node.attr} is not public"


def test_every_public_name_is_documented():
    for name in adapter.__all__:
        if name != "Layers":  # a type
            assert ">>> " in inspect.getdoc(getattr(adapter, name)), name


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_a_step_reaches_the_core_in_four_calls(engine, monkeypatch):
    depths = []

    def watched(function):
        def call(*args, **options):
            frames = [Path(frame.filename) for frame in traceback.extract_stack()]
            inside = [each for each in frames if FOLDER in each.parents]
            depths.append(sum(each.name != "_eager.py" for each in inside) + 1)
            return function(*args, **options)

        return call

    for name in ("measure_layers", "combine_layers"):
        monkeypatch.setattr(gp, name, watched(getattr(gp, name)))
    model = mlp(5, 6, 3)
    new, *old = [(x,) for x in torch.randn(4, 8, 5)]
    projector = Projector(model, engine=engine)
    projector.backward_batches(lambda model, x: model(x).square().sum(), new, old)
    assert depths == [4, 4]


def compiled(step, **options):
    dynamo = pytest.importorskip("torch._dynamo", reason="this torch cannot compile")
    dynamo.reset()
    return torch.compile(step, backend="eager", **options)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_a_step_inside_torch_compile_runs_uncompiled(engine):
    model = mlp(5, 6, 3)
    new, *old = [(x,) for x in torch.randn(4, 8, 5)]
    projector = Projector(model, gp.GEM(), engine=engine)

    def step(new):
        model.zero_grad()
        value = projector.backward_batches(lambda model, x: model(x).square().sum(), new, old)
        return value + 1

    expected = step(new), [p.grad.clone() for p in model.parameters()]
    found = compiled(step)(new), [p.grad.clone() for p in model.parameters()]
    torch.testing.assert_close(found, expected)
    whole = compiled(lambda new: projector.backward(lambda: model(new[0]).sum()), fullgraph=True)
    with pytest.raises(Exception, match=r"Projector\.backward") as refused:
        whole(new)
    # torch words this error, and quotes our advice where a function can state its reason (not 2.6).
    if "reason" in inspect.signature(torch.compiler.disable).parameters:
        assert "compile the model or the loss instead" in str(refused.value)


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_stays_compiled_inside_a_step():
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    pytest.importorskip("torch._dynamo", reason="this torch cannot compile").reset()
    model = mlp(5, 6, 3)
    new, *old = [(x,) for x in torch.randn(4, 8, 5)]

    def loss(model, x):
        return model(x).square().sum()

    def update(model):
        model.zero_grad()
        Projector(model, gp.GEM()).backward_batches(loss, new, old)
        return [p.grad.clone() for p in model.parameters()]

    found = update(torch.compile(model, backend=backend))
    assert graphs
    for each, expected in zip(found, update(model), strict=True):
        torch.testing.assert_close(each, expected)
