"""Gradient projection inside any torch training loop.

:class:`Projector` leaves the update w in ``.grad``; :class:`EpisodicMemory` keeps samples of the
old tasks; :func:`project_gradients` projects gradients that you hold yourself;
:func:`group_parameters` tells which parameters make a layer.

Notes
-----
What a method promises, it promises of a short step along −w, and of the samples that the old
gradients were computed on. This is what the rest of a training loop makes of it.

Optimizers
    Plain SGD steps along −w. Momentum, weight decay and Adam act after the projection: they mix in
    earlier steps or the weights, or scale every number by itself, so that a step may still hurt an
    old task that w does not hurt. A penalty that is part of the new loss is projected with it.
Clipping
    ``clip_grad_norm_`` after the projection multiplies all of w by one number: the step gets
    shorter and keeps the constraints. ``clip_grad_value_`` cuts every number by itself and may
    break them. To clip before the projection, do it between ``backward()`` and
    :meth:`Projector.store` or :meth:`Projector.project`. A shorter old gradient asks the same of
    :class:`gradproj.GEM` (with ``strength=0``), but it counts for less in the mean of the old ones:
    :class:`gradproj.Decomposed` and :class:`gradproj.AGEM` then solve another problem.
Mixed precision
    Scale all losses of a step with one ``GradScaler``: w is scaled as they are, and the scaler
    takes the scale out again. With ``overflow="skip"`` an overflow in any of the losses leaves NaN
    in ``.grad``, on which the scaler skips the step and lowers the scale. Gradients in float16 and
    bfloat16 are measured and combined in float32, and w is rounded to their dtype.
Batch norm
    In training every pass is normalised by its own batch. Passes over the memory move the running
    statistics too, unless ``running_statistics=False``.
What is in ``.grad``
    Views of a buffer that the next step writes to: clone what you want to keep.
Precision
    There is no ``precise`` as in :func:`gradproj.project`. Inner products of float32 gradients are
    formed in float32 block by block and the blocks added up in float64, those of layers of up to
    1,024 numbers in float64; w is combined in float32. A float64 model is computed in float64
    throughout.
"""

from gradproj.adapters.torch.functional import project_gradients
from gradproj.adapters.torch.layers import group_parameters
from gradproj.adapters.torch.memory import EpisodicMemory
from gradproj.adapters.torch.projector import Projector

__all__ = ["EpisodicMemory", "Projector", "group_parameters", "project_gradients"]
