"""The choice of layers: which are protected, and why the other parameters are not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from gradproj.adapters.torch import _shards
from gradproj.adapters.torch._preserver.kinds import Embedding, Kind, kind_of
from gradproj.adapters.torch._preserver.protected import Protected

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
    found: dict[nn.Parameter, tuple[str, dict[nn.Module, Kind]]] = {}
    reasons: dict[nn.Parameter, str] = {}
    for name, module in modules.items():
        own = {key: p for key, p in module._parameters.items() if p is not None}
        if not own:
            continue
        reason: str | None = None
        if _matches(name, exclude):
            reason = _EXCLUDED
        elif layers is not None and not _matches(name, layers):
            reason = _NOT_NAMED
        else:
            kind = _kind(module, hard)
            reason = kind if isinstance(kind, str) else _join(found, module, name, kind)
        for key, p in own.items():
            if reason is None and key not in ("weight", "bias"):
                reasons.setdefault(p, f"{type(module).__name__} has no input rows for {key!r}")
            elif reason is not None:
                reasons[p] = reason
    _untie(found, reasons)
    unprotected = {name: reasons[p] for name, p in model.named_parameters() if p in reasons}
    protected = [Protected(name or type(model).__name__, uses) for name, uses in found.values()]
    return protected, unprotected


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


def _kind(module: nn.Module, hard: bool) -> Kind | str:
    """Return the kind of a module with parameters, or why it is not protected."""
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
    kind = kind_of(module)
    if hard and isinstance(kind, Embedding):
        return "embeddings have no hard projection; use a strength instead of a share"
    return kind


def _join(
    found: dict[nn.Parameter, tuple[str, dict[nn.Module, Kind]]],
    module: nn.Module,
    name: str,
    kind: Kind,
) -> str | None:
    """Add a module to the layer of its weight; return a reason if that is not possible."""
    weight, bias = module._parameters["weight"], module._parameters.get("bias")
    assert weight is not None
    if weight not in found:
        found[weight] = (name, {module: kind})
        return None
    first, uses = found[weight]
    other = next(iter(uses))
    same = kind.shape == uses[other].shape and kind.transposed == uses[other].transposed
    if same and bias is other._parameters.get("bias"):
        uses[module] = kind
        return None
    return f"tied between {first!r} and {name!r}, whose inputs cannot be added up"


def _untie(
    found: dict[nn.Parameter, tuple[str, dict[nn.Module, Kind]]], reasons: dict[nn.Parameter, str]
) -> None:
    """Drop layers with a parameter that another use makes unprotected, or that two layers share."""
    owners: dict[nn.Parameter, list[nn.Parameter]] = {}
    for weight, (_, uses) in found.items():
        for p in next(iter(uses))._parameters.values():
            if p is not None:
                owners.setdefault(p, []).append(weight)
    for p, weights in owners.items():
        if p in reasons or len(weights) > 1:
            for weight in weights:
                if weight not in found:
                    continue
                name, uses = found.pop(weight)
                for member in next(iter(uses))._parameters.values():
                    if member is not None:
                        reasons.setdefault(member, f"{name!r} shares a parameter")
