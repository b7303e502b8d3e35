"""Kinds of layers: how each turns its input into rows a, and its weight into a matrix W.

The change of a layer's output for an input row a is [ΔW Δb] a, with a 1 at the end of a for the
bias. Kinds differ in what a row is:

- linear: the input itself;
- convolution: a patch of the input, with one problem per group;
- embedding: the unit vector of a token, so that the second moments are token counts;
- normalization: the normalized value of one channel, with one small problem per channel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.instancenorm import _InstanceNorm

import gradproj as gp

# Numbers in a block of patches, which take many times the memory of a convolution's input.
_NUMBERS = 1 << 22

COMPUTED = "its weight is computed from other parameters"


class Kind(ABC):
    """How one module turns its input into second moments, and its weight into a matrix.

    Attributes
    ----------
    shape : tuple of int
        Shape (..., out, in) of the weight as a matrix. Leading dimensions are independent problems.
    transposed : bool
        Whether the weight is stored as (in, out).
    bias : bool
        Whether the input rows end with a 1 for a bias.
    """

    shape: tuple[int, ...]
    transposed = False

    def __init__(self, module: nn.Module) -> None:
        self.bias = module._parameters.get("bias") is not None

    def empty(self) -> gp.InputMoments:
        """Return moments of no inputs."""
        return gp.InputMoments()

    def input(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
        """Return the layer's input from the arguments of a call of the module."""
        found: Tensor = args[0] if args else kwargs["input"]
        return found

    @abstractmethod
    def add(self, moments: gp.InputMoments, input: Tensor, keep: Tensor | None) -> gp.InputMoments:
        """Return the moments with those of one input added, which may be done in place.

        Parameters
        ----------
        moments : InputMoments
            The moments so far.
        input : Tensor
            What the module was called with.
        keep : Tensor, optional
            Mask of the positions that count, of the leading shape of the input.
        """


class Linear(Kind):
    """A linear layer."""

    def __init__(self, module: nn.Linear) -> None:
        super().__init__(module)
        self.shape = tuple(module.weight.shape)

    def add(self, moments: gp.InputMoments, input: Tensor, keep: Tensor | None) -> gp.InputMoments:
        """Add the input rows."""
        moments.update(completed(_kept(input, keep), self.bias))
        return moments


class Convolution(Kind):
    """A convolution in one, two or three dimensions."""

    def __init__(self, module: _ConvNd) -> None:
        super().__init__(module)
        self.module = module
        groups, weight = module.groups, module.weight
        lead = (groups,) if groups > 1 else ()
        self.shape = (*lead, len(weight) // groups, weight[0].numel())

    def add(self, moments: gp.InputMoments, input: Tensor, keep: Tensor | None) -> gp.InputMoments:
        """Add all patches, zero padding included."""
        del keep  # masks are for inputs of shape (batch, tokens, …)
        for rows in self._patches(input):
            moments.update(completed(rows, self.bias))
        return moments

    def _patches(self, input: Tensor) -> Iterator[Tensor]:
        """Yield blocks of patches, (rows, in) or (groups, rows, in)."""
        module, dims, groups = self.module, len(self.module.kernel_size), self.module.groups
        if input.dim() == dims + 1:  # without a batch dimension
            input = input[None]
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        input = functional.pad(input, module._reversed_padding_repeated_twice, mode)
        for dim in range(dims):
            reach = module.dilation[dim] * (module.kernel_size[dim] - 1) + 1
            input = input.unfold(dim + 2, reach, module.stride[dim])
            input = input[..., :: module.dilation[dim]]
        # A view (batch, groups, channels, *positions, *kernel); only its blocks are copied.
        view = input.view(len(input), groups, input.shape[1] // groups, *input.shape[2:])
        positions, kernel = range(3, 3 + dims), range(3 + dims, 3 + 2 * dims)
        view = view.permute(1, 0, *positions, 2, *kernel)
        size = groups * prod(view.shape[2 : 2 + dims]) * self.shape[-1]
        for block in torch.split(view, max(1, _NUMBERS // max(1, size)), dim=1):
            rows = block.reshape(groups, -1, self.shape[-1])
            yield rows if groups > 1 else rows[0]


class Embedding(Kind):
    """An embedding, whose input rows are unit vectors: its moments are a diagonal of counts."""

    transposed = True

    def __init__(self, module: nn.Embedding) -> None:
        super().__init__(module)
        self.padding = module.padding_idx
        self.shape = (module.embedding_dim, module.num_embeddings)

    def empty(self) -> gp.InputMoments:
        """Return moments of no inputs."""
        return gp.InputMoments(diagonal=True)

    def add(self, moments: gp.InputMoments, input: Tensor, keep: Tensor | None) -> gp.InputMoments:
        """Add the number of times that each token occurs, without the padding token."""
        tokens = input.reshape(-1) if keep is None else input[keep]
        counts = torch.bincount(tokens, minlength=self.shape[-1]).double()
        if self.padding is not None:
            counts[self.padding] = 0.0
        return moments + gp.InputMoments.from_total(counts, int(counts.sum()))


class Normalization(Kind):
    """A normalization layer: each channel maps its normalized input x to weight · x + bias."""

    def __init__(
        self, module: nn.Module, normalized: Callable[[Tensor], Tensor], *, leading: bool
    ) -> None:
        super().__init__(module)
        self.normalized = normalized
        self.leading = leading  # channels come right after the batch, and not last
        weight = module._parameters["weight"]
        assert weight is not None
        self.channels = tuple(weight.shape)
        self.shape = (weight.numel(), 1, 1)

    def add(self, moments: gp.InputMoments, input: Tensor, keep: Tensor | None) -> gp.InputMoments:
        """Add the normalized input: moments (channels, 2, 2), or (channels, 1, 1) without bias."""
        x = self.normalized(input.to(torch.promote_types(input.dtype, torch.float32)))
        if self.leading:
            x = x.movedim(1, -1)
            x = x.reshape(-1, x.shape[-1])
        else:
            x = _kept(x, keep, len(self.channels))
        square = x.square().sum(0, dtype=torch.float64)
        if not self.bias:
            return moments + gp.InputMoments.from_total(square[:, None, None], len(x))
        total = torch.empty((len(square), 2, 2), dtype=torch.float64, device=x.device)
        total[:, 0, 0], total[:, 1, 1] = square, len(x)
        total[:, 0, 1] = total[:, 1, 0] = x.sum(0, dtype=torch.float64)
        return moments + gp.InputMoments.from_total(total, len(x))


def kind_of(module: nn.Module) -> Kind | str:
    """Return the kind of a module, or the reason why it cannot be protected."""
    weight = module._parameters.get("weight")
    if weight is None:
        computed = hasattr(module, "parametrizations") or hasattr(module, "weight_g")
        return COMPUTED if computed else _unknown(module)
    if isinstance(module, nn.Linear):
        return Linear(module)
    if isinstance(module, _ConvTransposeNd):
        return "transposed convolutions are not supported"
    if isinstance(module, _ConvNd):
        return Convolution(module)
    if isinstance(module, nn.Embedding):
        return "its gradient is sparse" if module.sparse else Embedding(module)
    normalized = _normalized(module)
    if normalized is None:
        return _unknown(module)
    leading = not isinstance(module, nn.LayerNorm | nn.RMSNorm)
    return Normalization(module, normalized, leading=leading)


def _unknown(module: nn.Module) -> str:
    return f"{type(module).__name__} is not a supported layer"


def _normalized(module: nn.Module) -> Callable[[Tensor], Tensor] | None:
    """Return the function that normalizes as the module does, without its weight and bias.

    Running statistics are read where the module reads them, and never moved.
    """
    if isinstance(module, nn.LayerNorm):
        return lambda x: functional.layer_norm(x, module.normalized_shape, eps=module.eps)
    if isinstance(module, nn.RMSNorm):
        return lambda x: functional.rms_norm(x, module.normalized_shape, eps=module.eps)
    if isinstance(module, nn.GroupNorm):
        return lambda x: functional.group_norm(x, module.num_groups, eps=module.eps)
    if not isinstance(module, _NormBase):
        return None
    instance = isinstance(module, _InstanceNorm)

    def normalized(x: Tensor) -> Tensor:
        mean, variance = module.running_mean, module.running_var
        own = module.training or mean is None or variance is None
        if instance and own:
            return functional.instance_norm(x, eps=module.eps)
        if own:
            mean = variance = None
        return functional.batch_norm(x, mean, variance, training=own, eps=module.eps)

    return normalized


def completed(rows: Tensor, bias: bool) -> Tensor:
    """Append the 1 for the bias."""
    return torch.cat([rows, rows.new_ones((*rows.shape[:-1], 1))], -1) if bias else rows


def _kept(input: Tensor, keep: Tensor | None, trailing: int = 1) -> Tensor:
    """Return the rows (rows, in) of an input that count; its last dimensions are a row."""
    input = input.flatten(-trailing)
    return input.reshape(-1, input.shape[-1]) if keep is None else input[keep]
