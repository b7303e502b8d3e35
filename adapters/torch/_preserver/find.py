"""The choice of layers: which are protected, and why the other parameters are not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from gradproj.adapters.torch import _shards
from gradproj.adapters.torch._preserver.attention import (
    is_attention,
    output_layer,
    projection_layers,
)
from gradproj.adapters.torch._preserver.kinds import COMPUTED, Embedding, Kind, kind_of
from gradproj.adapters.torch._preserver.places import Place
from gradproj.adapters.torch._preserver.protected import Key, Protected

_EXCLUDED = "excluded"
_NOT_NAMED = "not named in layers"


def find(
    model: nn.Module, layers: Sequence[str] | None, exclude: Sequence[str], *, hard: bool
) -> tuple[list[Protected], dict[str, str]]:
    """Return the layers that are protected, and the reasons for all other parameters.

    Parameters
    ----------
    model : Module
        The model inside of torch's wrappers.
    layers, exclude : sequences of str
        Patterns for names of modules; a pattern for a module also stands for all inside of it.
    hard : bool
        Whether a hard projection is wanted, which embeddings do not have.
    """
    modules = dict(model.named_modules())
    for argument, patterns in (("layers", layers or ()), ("exclude", exclude)):
        _check(argument, patterns, modules)
    lora = [name for name, module in modules.items() if _is_lora(module)]
    outputs = {m.out_proj: m for m in modules.values() if is_attention(m)}
    found: dict[Key, Protected] = {}
    reasons: dict[nn.Parameter, str] = {}
    for name, module in modules.items():
        own = {key: p for key, p in module._parameters.items() if p is not None}
        if not own:
            continue
        made: list[Protected] = []
        reason: str | None = None
        if _matches(name, exclude):
            reason = _EXCLUDED
        elif layers is not None and not _matches(name, layers):
            reason = _NOT_NAMED
        else:
            reason = _refused(module, hard)
        if reason is None and any(name.startswith(f"{outer}.lora_") for outer in lora):
            _refuse_lora(name)
        if reason is None:
            made = _made(name or type(model).__name__, module, outputs.get(module))
            reason = next(filter(None, (_join(found, layer) for layer in made)), None)
        members = {p for layer in made for p in layer.parameters.values()}
        for key, p in own.items():
            if reason is not None:
                reasons[p] = reason
            elif p not in members:
                reasons.setdefault(p, f"{type(module).__name__} has no input rows for {key!r}")
    _untie(found, reasons)
    unprotected = {name: reasons[p] for name, p in model.named_parameters() if p in reasons}
    return list(found.values()), unprotected


def as_patterns(argument: str, given: Any) -> tuple[str, ...]:
    """Return names or patterns as a tuple; raise for anything else."""
    patterns = (given,) if isinstance(given, str) else given
    if not isinstance(patterns, Iterable) or isinstance(patterns, Mapping):
        patterns = (None,)
    patterns = tuple(patterns)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TypeError(
                f"{argument}={given!r} is invalid: expected names of modules or patterns such as "
                "'encoder.*', in a list"
            )
    return patterns


def _check(argument: str, patterns: Iterable[str], modules: Mapping[str, nn.Module]) -> None:
    for pattern in patterns:
        if not any(_matches(name, (pattern,)) for name in modules):
            known = ", ".join(repr(name) for name in list(modules)[1:6])
            raise ValueError(
                f"{argument} has {pattern!r}, which no module of the model matches; its modules "
                f"are {known}, …"
            )


def _matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a pattern matches the name of a module or of one around it."""
    parts = name.split(".")
    around = [".".join(parts[: n + 1]) for n in range(len(parts))]
    return any(fnmatchcase(each, pattern) for each in around for pattern in patterns)


def _refused(module: nn.Module, hard: bool) -> str | None:
    """Return why a module with parameters is not protected, or None."""
    own = [p for p in module._parameters.values() if p is not None]
    if any(isinstance(p, nn.UninitializedParameter) for p in own):
        raise ValueError(
            f"{type(module).__name__} is lazy and has no shape yet; run one forward pass before "
            "you build the Preserver"
        )
    if any(_shards.is_sharded(p) for p in own):
        return "it is sharded over processes (DTensor)"
    if any(p.is_complex() for p in own):
        return "it is complex"
    if is_attention(module):
        weights = ("in_proj_weight", "v_proj_weight")
        known = any(module._parameters.get(name) is not None for name in weights)
        return None if known else COMPUTED
    kind = kind_of(module)
    if hard and isinstance(kind, Embedding):
        return "embeddings have no hard projection; use a strength instead of a share"
    return kind if isinstance(kind, str) else None


def _is_lora(module: nn.Module) -> bool:
    """Whether it is a LoRA layer of peft, which holds its two factors in lora_A and lora_B."""
    return all(
        isinstance(getattr(module, name, None), nn.ModuleDict) for name in ("lora_A", "lora_B")
    )


def _refuse_lora(name: str) -> None:
    raise ValueError(
        f"{name!r} is a LoRA factor, which Preserver does not support: the layer's output changes "
        "with the product of A and B, and protecting each factor alone kept less than plain LoRA "
        "with a lower learning rate. Train the full layers, or leave the factors unprotected with "
        'exclude=["*.lora_*"]'
    )


def _made(name: str, module: nn.Module, attention: nn.Module | None) -> list[Protected]:
    """Return the layers of a supported module; `attention` is that whose output layer it is."""
    if attention is not None:
        return [output_layer(name, attention)]
    if is_attention(module):
        return projection_layers(name, module)
    kind = kind_of(module)
    assert isinstance(kind, Kind)
    places = {key: Place(module, key) for key in ("weight", "bias")}
    return [Protected(name, {module: kind}, places)]


def _join(found: dict[Key, Protected], layer: Protected) -> str | None:
    """Add a layer, or its uses to the layer of the same weight; return a reason if it cannot be."""
    key = layer.key
    if key not in found:
        found[key] = layer
        return None
    first, mine = found[key], layer.kind
    same = mine.shape == first.kind.shape and mine.transposed == first.kind.transposed
    if same and layer.parameters.get("bias") is first.parameters.get("bias"):
        first.uses |= layer.uses
        return None
    return f"tied between {first.name!r} and {layer.name!r}, whose inputs cannot be added up"


def _untie(found: dict[Key, Protected], reasons: dict[nn.Parameter, str]) -> None:
    """Drop layers with a parameter that another use makes unprotected, or that two layers share.

    The projections of one attention module are rows of the same parameters.
    """
    owners: dict[nn.Parameter, list[Key]] = {}
    for key, layer in found.items():
        for p in layer.parameters.values():
            owners.setdefault(p, []).append(key)
    for p, keys in owners.items():
        left = [key for key in keys if key in found]
        places = {tuple(found[key].uses) for key in left}
        if p not in reasons and len(places) <= 1:
            continue
        for key in left:
            layer = found.pop(key)
            for member in layer.parameters.values():
                reasons.setdefault(member, f"{layer.name!r} shares a parameter")
