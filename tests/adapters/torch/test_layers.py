import pytest
import torch
from torch import nn

from gradproj.adapters.torch import Projector, group_parameters


def network():
    return nn.ModuleDict(
        {
            "body": nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.BatchNorm2d(2)),
            "head": nn.Linear(8, 3),
        }
    )


NAMES = ["body.0.weight", "body.1.weight", "body.1.bias", "head.weight", "head.bias"]


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("module", {"body.0": NAMES[:1], "body.1": NAMES[1:3], "head": NAMES[3:]}),
        ("tensor", {name: [name] for name in NAMES}),
        ("child", {"body": NAMES[:3], "head": NAMES[3:]}),
        ("all", {"all": NAMES}),
        (
            lambda name: name.endswith("bias"),
            {"False": [NAMES[0], NAMES[1], NAMES[3]], "True": [NAMES[2], NAMES[4]]},
        ),
        ([NAMES[3:], NAMES[:3]], {"group 1": NAMES[:3], "group 0": NAMES[3:]}),
    ],
)
def test_every_parameter_is_in_the_layer_that_was_asked_for(layers, expected):
    found = Projector(network(), layers=layers).layers
    assert found == {name: tuple(members) for name, members in expected.items()}
    assert list(found) == list(expected)


def compiled(model):
    return torch.compile(model, backend="eager")


@pytest.mark.parametrize(
    "wrap",
    [compiled, nn.DataParallel, lambda m: compiled(nn.DataParallel(m))],
    ids=["compiled", "parallel", "both"],
)
@pytest.mark.parametrize("layers", ["child", "module", [NAMES[3:], NAMES[:3]]], ids=str)
def test_names_are_those_of_the_network_inside_a_wrapper(wrap, layers):
    model = network()
    plain, wrapped = Projector(model, layers=layers), Projector(wrap(model), layers=layers)
    assert wrapped.layers == plain.layers
    assert wrapped.state_dict() == plain.state_dict()


@pytest.mark.parametrize("wrap", [compiled, nn.DataParallel])
def test_a_wrapped_network_gets_the_same_gradients(wrap):
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    x = torch.randn(3, 6, 4)
    answers = []
    for each in (model, wrap(model)):
        model.zero_grad()
        projector = Projector(each, layers="child")
        projector.backward_batches(
            lambda model, x: model(x).square().sum(), (x[0],), [(b,) for b in x[1:]]
        )
        answers.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(*answers)


def test_a_parameter_of_the_model_itself_is_a_layer_of_its_own():
    model = nn.Linear(2, 2)
    assert group_parameters(model, "module") == {"weight": ("weight",), "bias": ("bias",)}


def test_frozen_parameters_are_left_out():
    model = network()
    model["head"].weight.requires_grad_(False)
    assert group_parameters(model, "child")["head"] == ("head.bias",)
    assert group_parameters(model, [NAMES])["group 0"] == tuple(
        n for n in NAMES if n != "head.weight"
    )


def test_tied_weights_count_once_under_their_first_name():
    model = nn.ModuleDict({"embed": nn.Embedding(5, 4), "out": nn.Linear(4, 5, bias=False)})
    model["out"].weight = model["embed"].weight
    assert group_parameters(model, "module") == {"embed": ("embed.weight",)}
    assert group_parameters(model, [["out.weight"]]) == {"group 0": ("embed.weight",)}
    with pytest.raises(ValueError, match=r"layers\[1\] and layers\[0\] both hold 'out.weight'"):
        group_parameters(model, [["embed.weight"], ["out.weight"]])


@pytest.mark.parametrize(
    ("layers", "error", "message"),
    [
        ("modul", ValueError, "layers='modul' is not known; use 'module', 'tensor'"),
        (None, ValueError, "layers=None is not known; use 'module', 'tensor'"),
        ([NAMES[:3]], ValueError, r"layers leaves out \['head.weight', 'head.bias'\]"),
        ([NAMES, ["tail"]], ValueError, r"layers\[1\] names 'tail', which the model does not have"),
        ([NAMES, NAMES[:1]], ValueError, r"layers\[1\] and layers\[0\] both hold 'body.0.weight'"),
        (
            lambda name: 1 if "head" in name else "1",
            ValueError,
            "layers gives two layers the name '1', one of them as 1; let it return strings",
        ),
        (NAMES, TypeError, r"layers\[0\]='body.0.weight' is a string; each group is a list"),
    ],
)
def test_wrong_layers_say_what_is_wrong(layers, error, message):
    with pytest.raises(error, match=message):
        Projector(network(), layers=layers)
