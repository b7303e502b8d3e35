"""`PreservePlugin`: a Preserver inside an Avalanche strategy."""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch
from avalanche.training.plugins import SupervisedPlugin
from torch import nn
from torch.utils.data import DataLoader

from gradproj.adapters.avalanche import _strategy
from gradproj.adapters.torch import Preserver


class PreservePlugin(SupervisedPlugin):
    """Keep what a model answers to the inputs of old experiences, without stored samples.

    Each step replaces the gradient g of a layer by the solution of

        w = argmin ½‖w − g‖² + λ/2 tr(w S wᵀ),

    where S holds the second moments of the inputs that old experiences fed into the layer, see
    :class:`gradproj.adapters.torch.Preserver`. When an experience ends, the plugin runs its data
    through the model once more, in evaluation mode, and adds the inputs to S.

    Parameters
    ----------
    preserver : Preserver
        For the strategy's model.
    batches : int, optional
        Number of batches of ``train_mb_size`` samples that are observed. Default: all.

    Notes
    -----
    Output layers that Avalanche replaces when classes are added (``IncrementalClassifier``) cannot
    be protected: name them in ``Preserver(exclude=…)``. Heads that ``MultiHeadClassifier`` adds
    later are trained as usual.

    Examples
    --------
    .. code-block:: python

        plugin = PreservePlugin(Preserver(model, strength=1.0))
        strategy = Naive(model=model, optimizer=optimizer, plugins=[plugin])
        for experience in benchmark.train_stream:
            strategy.train(experience)
    """

    def __init__(self, preserver: Preserver, *, batches: int | None = None) -> None:
        super().__init__()
        self._boundaries = _strategy.Boundaries()
        if not isinstance(preserver, Preserver):
            raise TypeError(
                f"preserver is a {type(preserver).__name__}; pass a "
                "gradproj.adapters.torch.Preserver for the model, such as Preserver(model)"
            )
        if batches is not None and batches < 1:
            raise ValueError(f"batches={batches} is invalid: expected an integer >= 1 or None")
        self.preserver = preserver
        self.batches = batches
        self._handle: Any = None
        present = dict(preserver.model.named_parameters())
        names = [name for group in preserver.protected.values() for name in group]
        self._protected: dict[str, nn.Parameter] = {name: present[name] for name in names}

    def before_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Attach the preserver to the optimizer."""
        del args, kwargs
        if self.preserver.model is not strategy.model:
            raise ValueError(
                "the preserver and the strategy have different models; build it with "
                "Preserver(strategy.model, …)"
            )
        present = dict(strategy.model.named_parameters())
        replaced = [name for name, p in self._protected.items() if present.get(name) is not p]
        if replaced:
            raise ValueError(
                f"the model has replaced {replaced[0]!r} since the preserver was built, so that it "
                "is not protected; build it with Preserver(model, exclude=[…]) for output layers "
                "that grow with the number of classes"
            )
        self._detach()  # of an experience that ended with an error
        self._handle = self.preserver.attach(strategy.optimizer)

    def after_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Observe the inputs of the experience, and preserve the answers to them from now on."""
        del args, kwargs
        self._detach()
        experience = self._boundaries.ended(strategy, type(self).__name__)
        if experience is None:
            return
        dataset = experience.dataset
        loader = DataLoader(
            dataset, batch_size=strategy.train_mb_size, collate_fn=_strategy.collate_of(dataset)
        )
        current = strategy.mbatch, strategy.mb_output
        training = {module: module.training for module in strategy.model.modules()}
        strategy.model.eval()
        try:
            for batch in islice(loader, self.batches):
                with torch.no_grad(), self.preserver.observe():
                    _strategy.forward(strategy, batch)
        finally:
            strategy.mbatch, strategy.mb_output = current
            for module, mode in training.items():
                module.training = mode
        self.preserver.consolidate()

    def _detach(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
