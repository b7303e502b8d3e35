"""Gradient projection inside any torch training loop.

Momentum, weight decay and Adam's scaling act after the projection: then w satisfies the
constraints, the step that the optimizer makes of it need not.

Mixed precision: pass ``scaler.scale(loss)`` for every loss and build the projector with
``overflow="skip"``. The one factor that all gradients carry cancels in the coefficients, so
``scaler.step(optimizer)`` unscales w as it would a plain gradient; GradScaler's powers of two make
that exact.

Clipping w is ``clip_grad_norm_`` after :meth:`Projector.backward`. To clip the gradients that go
into it, or to accumulate them over micro-batches, use :meth:`Projector.zero_grad`,
:meth:`Projector.store` and :meth:`Projector.project`.
"""

from gradproj.adapters.torch.layers import group_parameters
from gradproj.adapters.torch.memory import EpisodicMemory
from gradproj.adapters.torch.projector import Projector

__all__ = ["EpisodicMemory", "Projector", "group_parameters"]
