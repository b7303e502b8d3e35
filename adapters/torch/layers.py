"""The grouping of parameters into layers, by their names."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import groupby
from typing import Literal

from torch import nn

from gradproj.adapters.torch import _arguments

LayerName = Literal["module", "tensor", "child", "all"]
Layers = LayerName | Callable[[str], Hashable] | Sequence[Sequence[str]]

NAMED: dict[str, Callable[[str], Hashable]] = {
    "module": lambda name: name.rpartition(".")[0] or name,
    "tensor": lambda name: name,
    "child": lambda name: name.partition(".")[0],
    "all": lambda _: "all",
}


def group_parameters(model: nn.Module, layers: Layers) -> dict[str, tuple[str, ...]]:
    """Put every trainable parameter of a model in exactly one layer.

    Parameters
    ----------
    model : Module
        Frozen parameters (``requires_grad=False``) are left out; a tied weight counts once, under
        the first of its names.
    layers : str, callable or sequence of name groups
        ``"module"`` (weight and bias of a submodule together; a parameter of the model itself makes
        a layer of its own), ``"tensor"``, ``"child"`` (top-level children), ``"all"`` (one layer),
        a function from a parameter's name to its layer, or the groups themselves.

    Returns
    -------
    dict
        Layer name to the names of its parameters, in the order of the model.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> group_parameters(net, "module")
    {'0': ('0.weight', '0.bias'), '2': ('2.weight', '2.bias')}
    """
    _arguments.model(model)
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    if isinstance(layers, str) or not (callable(layers) or isinstance(layers, Iterable)):
        if layers not in NAMED:
            known = ", ".join(repr(name) for name in NAMED)
            raise ValueError(
                f"layers={layers!r} is not known; use {known}, a function of the parameter's name, "
                "or a list of groups of names"
            )
        key = NAMED[layers]
    elif callable(layers):
        key = layers
    else:
        key = _key_from_groups(model, names, layers)
    found: dict[str, tuple[str, ...]] = {}
    for layer, members in groupby(sorted(names, key=_first_seen(names, key)), key):
        if str(layer) in found:
            raise ValueError(
                f"layers gives two layers the name {str(layer)!r}, one of them as {layer!r}; let "
                "it return strings that differ"
            )
        found[str(layer)] = tuple(members)
    return found


def _first_seen(
    names: Sequence[str], key: Callable[[str], Hashable]
) -> Callable[[str], tuple[int, int]]:
    """Sort key: layers in the order they first appear, then parameters in the model's order."""
    order: dict[Hashable, int] = {}
    for name in names:
        order.setdefault(key(name), len(order))
    position = {name: i for i, name in enumerate(names)}
    return lambda name: (order[key(name)], position[name])


def _key_from_groups(
    model: nn.Module, trainable: Sequence[str], groups: Sequence[Sequence[str]]
) -> Callable[[str], Hashable]:
    first_name = {id(p): name for name, p in reversed(list(model.named_parameters()))}
    canonical = {
        name: first_name[id(p)] for name, p in model.named_parameters(remove_duplicate=False)
    }
    owner: dict[str, int] = {}
    for number, group in enumerate(groups):
        if isinstance(group, str):
            raise TypeError(
                f"layers[{number}]={group!r} is a string; each group is a list of parameter names"
            )
        for name in group:
            if name not in canonical:
                raise ValueError(f"layers[{number}] names {name!r}, which the model does not have")
            if owner.setdefault(canonical[name], number) != number:
                raise ValueError(
                    f"layers[{number}] and layers[{owner[canonical[name]]}] both hold {name!r}; "
                    "put every parameter (a tied one once) in exactly one group"
                )
    missing = [name for name in trainable if name not in owner]
    if missing:
        raise ValueError(f"layers leaves out {missing}; put every trainable parameter in a group")
    return lambda name: f"group {owner[name]}"
