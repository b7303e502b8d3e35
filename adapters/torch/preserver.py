"""`Preserver`: training that keeps what a model answers to old inputs, without stored samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch import distributed as dist
from torch.optim import Optimizer

from gradproj.adapters.torch import _arguments
from gradproj.adapters.torch._arguments import When
from gradproj.adapters.torch._eager import eager
from gradproj.adapters.torch._preserver.attach import Handle, on_gradient, on_step, unwrapped
from gradproj.adapters.torch._preserver.observer import Observer
from gradproj.adapters.torch._preserver.protected import Protected


class Preserver(Observer):
    r"""Continual learning without stored samples: keeps the answers of each layer to old inputs.

    For each layer with weight and bias [W b] it solves

    .. math:: w = \arg\min_w \tfrac12 \|w - g\|^2 + \tfrac\lambda2 \operatorname{tr}(w S w^\top)
       = g\,(I + \lambda S)^{-1},

    where g is the gradient and S holds the second moments of the inputs that earlier tasks fed into
    the layer. :math:`\operatorname{tr}(w S w^\top)` is how much a step along w changes the layer's
    outputs for those inputs. No sample is stored, and the cost of a step does not depend on the
    number of tasks.

    Parameters
    ----------
    model : Module
        The model that is trained.
    strength : float
        λ >= 0. 0 is plain training, and ``math.inf`` projects onto the null space of S.
    share : float or mapping, optional
        Use the hard projection of GPM instead: a layer keeps the directions that hold this share of
        each task's inputs and no longer changes along them. A mapping gives one share per layer. It
        is an attribute that may be changed between tasks; `strength` is not used.
    importance : float, optional
        With `share`: α of SGP, which weights the directions by their importance.
    layers : list of str, optional
        Names or patterns of the modules that are protected, such as ``"encoder.*"``. A module
        stands for all modules in it. Default: all modules of supported types.
    exclude : list of str
        Names or patterns of modules that are not protected, such as the output layers that only
        other tasks use.
    rank : int, optional
        Keep this number of leading directions of the inputs of linear and convolution layers, and
        the mean of the others. That takes rank·in numbers instead of in², and a step is faster.
        It is available for the soft form in one process. Without it, layers with more than 8,192
        inputs cause a warning.
    scaled : bool
        Scale each task's S to mean eigenvalue 1, so that λ has the same meaning for all layers.
    when : {"gradient", "step"}
        What :meth:`attach` projects: the gradient before the optimizer uses it, or the change that
        the optimizer makes. See the notes.
    process_group : ProcessGroup, optional
        Processes whose observed inputs add up. Default: those of a ``DistributedDataParallel``
        model.

    Attributes
    ----------
    strength : float
        As above. A new value also counts for earlier tasks.
    share : float or mapping
        As above. A new value counts for later tasks only.
    tasks : int
        Number of tasks that have ended.

    Notes
    -----
    Supported layers are ``nn.Linear``, ``nn.Conv1d`` to ``nn.Conv3d``, ``nn.MultiheadAttention``,
    ``nn.Embedding`` (soft form only) and normalization layers. :attr:`unprotected` lists all other
    parameters with the reason: they are trained as usual. A parameter without a gradient is not
    changed in that step.

    `when` decides what is projected if the optimizer does more than plain SGD.

    - ``"gradient"`` is the form of :meth:`apply`. Momentum of gradients that were projected keeps
      the guarantee, but momentum from before the end of a task does not. Weight decay and the
      scaling of Adam act after the projection and change the answers.
    - ``"step"`` projects the whole change of the parameters, so that the guarantee holds for all of
      these. It takes a copy of the parameters.

    Permuted digits, mean accuracy over seeds 0 to 2 at the end; learning rate and strength chosen
    on seeds 100 and 101 (``python benchmarks/preserve_when.py``)::

                            fine-tuning  "gradient"  "step"
        SGD                     62.6        92.3      92.3
        SGD, momentum 0.9       55.9        87.2      91.9
        Adam                    62.1        87.7      92.8

    So ``"step"`` is better where all that the model knows has been observed. In an experiment with
    a pretrained transformer without calibration inputs it lost 13 points to ``"gradient"``, which
    is the default as the more forgiving one.

    In a model with one output layer per task, a head is protected from the end of the first task
    that used it, and the heads of later tasks are free. A head that only one task uses gets no
    gradient from later tasks, so that `exclude` saves its memory and changes no result with plain
    SGD.

    Autocast does not reach the moments or the update: they are computed in float32 or better. An
    attached preserver runs after ``GradScaler`` has unscaled the gradients.

    With :class:`Projector`, call :meth:`apply` after ``projector.backward(...)``, or attach the
    preserver: what is projected is the whole update, the new gradient and the replay term together.
    Projecting the new gradient alone is much worse.

    Layers that read the same inputs, such as the query, key and value projections of
    self-attention, share one S and one factor.

    Frozen layers are not recorded, unless `layers` names them. A layer that is unfrozen later is
    protected for the tasks that were observed since.

    Examples
    --------
    >>> import torch
    >>> from gradproj.adapters.torch import Preserver
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> preserver = Preserver(model, strength=3.0)
    >>> with preserver.observe():  # the first task's inputs use one direction only
    ...     _ = model(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    >>> preserver.consolidate()
    >>> model(torch.tensor([[1.0, 1.0]])).sum().backward()
    >>> preserver.apply()
    >>> model.weight.grad  # S is scaled to mean eigenvalue 1: diag(2, 0)
    tensor([[0.1429, 1.0000]])
    >>> preserver
    Preserver(strength=3.0, layers=1, tasks=1, memory=32 B)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        strength: float = 1.0,
        share: float | Mapping[str, float] | None = None,
        importance: float | None = None,
        layers: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        rank: int | None = None,
        scaled: bool = True,
        when: When = "gradient",
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        _arguments.choices(when=when)
        super().__init__(
            model,
            strength=strength,
            share=share,
            importance=importance,
            layers=layers,
            exclude=exclude,
            rank=rank,
            scaled=scaled,
            process_group=process_group,
        )
        self.when: When = when
        self._handles: list[Handle] = []

    def __repr__(self) -> str:
        form = f"share={self.share}" if self._hard else f"strength={self.strength}"
        return (
            f"{type(self).__name__}({form}, layers={len(self._layers)}, tasks={self.tasks}, "
            f"memory={self.memory.total})"
        )

    def __getstate__(self) -> dict[str, Any]:
        # A copy belongs to a copy of the model, which other optimizers train.
        return {**self.__dict__, "_handles": [], "_observing": False}

    @eager
    def apply(self) -> None:
        """Replace the gradient in ``.grad`` by the update w, in place.

        Call it once per step, after ``backward()`` and before ``optimizer.step()``. Before the
        first task has ended it does nothing.

        Raises
        ------
        NotFiniteError
            If a gradient contains NaN or infinity. It names the layer, and layers before it have
            been changed.
        """
        if any(handle.optimizer is not None for handle in self._handles):
            raise RuntimeError(
                "the preserver is attached to an optimizer, which applies it in each step: remove "
                "the call of apply(), or the handle that attach() returned"
            )
        self._network.project(self._strength, None)

    def attach(self, optimizer: Optimizer) -> Handle:
        """Apply the preserver in each step of an optimizer, for example inside of a trainer.

        Parameters
        ----------
        optimizer : Optimizer
            With parameters of the model. Its hooks run inside of ``optimizer.step()``, after
            gradients were clipped and unscaled. Of a wrapper, such as that of accelerate, the
            optimizer inside is used, because wrappers do not call hooks.

        Returns
        -------
        Handle
            Its method ``remove()`` ends it.
        """
        optimizer = unwrapped(optimizer)
        self._handles = [handle for handle in self._handles if handle.optimizer is not None]
        if any(handle.optimizer is optimizer for handle in self._handles):
            raise RuntimeError("the preserver is attached to this optimizer already")
        mine = {p for group in optimizer.param_groups for p in group["params"]}
        if not any(p in mine for layer in self._layers for p in layer.parameters.values()):
            raise ValueError("optimizer has none of the protected parameters of this model")
        if self.when == "gradient":
            handle = on_gradient(optimizer, self._apply)
        else:
            handle = on_step(optimizer, self._layers, self._project)
        self._handles.append(handle)
        return handle

    def _apply(self, parameters: set[nn.Parameter]) -> None:
        self._network.project(self._strength, parameters)

    def _project(self, layer: Protected, weight: Tensor | None, bias: Tensor | None) -> None:
        layer.project(weight, bias, self._strength)
