"""Gradient projection inside any torch training loop.

- :class:`Projector` adds the projected update w to ``.grad``.
- :class:`Preserver` keeps the answers to old inputs without stored samples.
- :class:`EpisodicMemory` keeps samples of the old tasks.
- :func:`project_gradients` projects gradients that the caller holds.
- :func:`group_parameters` groups parameters into layers, as :data:`Layers` describes them.
- :func:`herd` orders samples, and :func:`keep_running_statistics` restores those of batch norm.

Notes
-----
A method's guarantees hold for a small step along −w, and for the samples that the old gradients
were computed on. The notes below say how other parts of a training loop affect them.

The contents of ``.grad``
    ``backward`` and ``backward_batches`` add w to ``.grad``, as ``loss.backward()`` does. Call
    ``optimizer.zero_grad()`` before each step. Without it updates accumulate, each projected on its
    own; this is how gradient accumulation in Lightning or the Hugging Face Trainer works. To
    accumulate gradients first and project their sum, use :meth:`Projector.store` and
    :meth:`Projector.project`. The tensors in ``.grad`` are views of a buffer that the next step
    writes to: clone what you want to keep.
Optimizers
    Plain SGD steps along −w. Momentum, weight decay and Adam act after the projection: they mix in
    earlier steps or the weights, or scale every number separately, so that a step may still hurt
    an old task that w does not hurt. A penalty that is part of the new loss is projected with it.
    Optimizers that step inside backward hooks are refused.
Clipping
    ``clip_grad_norm_`` after the projection multiplies all of w by one number: the step gets
    shorter and keeps the constraints. ``clip_grad_value_`` cuts every number separately and may
    break them. To clip before the projection, do it between ``backward()`` and
    :meth:`Projector.store` or :meth:`Projector.project`. A shorter old gradient does not change the
    constraint of :class:`gradproj.GEM` (with ``strength=0``), but it counts for less in the mean of
    the old gradients: :class:`gradproj.Decomposed` and :class:`gradproj.AGEM` then solve another
    problem.
Mixed precision
    Scale all losses of a step with one ``GradScaler``: w is then scaled in the same way, and the
    scaler removes the scale again. With ``overflow="skip"`` an overflow in any of the losses leaves
    NaN in ``.grad``, on which the scaler skips the step and lowers the scale. Gradients in float16
    and bfloat16 are measured and combined in float32, and w is rounded to their dtype.
Batch norm
    In training every pass is normalized by its own batch. Passes over the memory also move the
    running statistics, unless ``running_statistics=False``.
Several processes
    A ``DistributedDataParallel`` model averages by itself, once per forward pass. Give its losses
    as functions, as a generator or as batches, or use ``distributed="average"``.
Compilation
    Compile the model or the loss, not the step: inside ``torch.compile`` a projected step runs
    uncompiled.
Precision
    Inner products of float32 gradients are formed in float32 block by block and the blocks are
    added up in float64. Those of layers of up to 1,024 numbers are formed in float64, and so are
    sums of old gradients, for methods that need only a sum. A float64 model is computed in float64
    throughout.
"""

from gradproj.adapters.torch._statistics import keep_running_statistics
from gradproj.adapters.torch.functional import project_gradients
from gradproj.adapters.torch.layers import Layers, group_parameters
from gradproj.adapters.torch.memory import EpisodicMemory
from gradproj.adapters.torch.preserver import Preserver
from gradproj.adapters.torch.projector import Projector
from gradproj.adapters.torch.selection import herd

__all__ = [
    "EpisodicMemory",
    "Layers",
    "Preserver",
    "Projector",
    "group_parameters",
    "herd",
    "keep_running_statistics",
    "project_gradients",
]
