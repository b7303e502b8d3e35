r"""More user-defined methods: GradVac, MGDA, CAGrad and MEGA.

Each method is a function from inner products to the coefficients of

.. math:: w = s\, g + G^\top c

where g is the new gradient and the rows of G are the old ones. All of them work in `gp.project`,
`gp.project_layers` and the torch adapter's `Projector`:

>>> import numpy as np
>>> import gradproj as gp
>>> g, G = np.asarray([2.0, 0.0]), np.asarray([[0.0, 1.0]])
>>> gp.project(g, G, MGDA())
array([0.4, 0.8])

Multi-task learning has no distinguished new task. Take the mean gradient as the new one:

>>> G = np.asarray([[2.0, 0.0], [-1.0, 1.0]])
>>> gp.project(G.mean(axis=0), G, MGDA())
array([0.2, 0.6])

MGDA's problem does not change by that, because the mean is in the convex hull of the rows. CAGrad's
problem is written for the mean in the first place.
"""

import numpy as np

import gradproj as gp


def _square(products):
    """Return ‖g‖², which is unknown for products that were made without it."""
    if np.isnan(products.square).any():
        raise ValueError(
            "products.square is NaN, but this method needs the squared norm of g: pass "
            "gp.measure(g, G) or gp.Products(C, h, square)"
        )
    return products.square


class GradVac(gp.Method):
    r"""GradVac: keep the similarity to each old task at its usual value or above.

    Starting from :math:`w = g`, one small problem is solved per old task i:

    .. math:: \min_{a \ge 0} a \quad \text{s.t.} \quad \cos(w + a\, g_i,\, g_i) \ge \hat\varphi_i,
       \qquad w \leftarrow w + a\, g_i

    The closed form, with :math:`\varphi = \cos(w, g_i)`, is :math:`a = 0` if
    :math:`\varphi \ge \hat\varphi_i`, and otherwise

    .. math:: a = \frac{\|w\|}{\|g_i\|} \left(\sqrt{1 - \varphi^2}\,
       \frac{\hat\varphi_i}{\sqrt{1 - \hat\varphi_i^2}} - \varphi\right)

    The target is a moving average of the similarities before the correction,
    :math:`\hat\varphi_i \leftarrow (1 - \beta) \hat\varphi_i + \beta \varphi`, which starts at 0.
    With :math:`\beta = 0` this is PCGrad. The paper visits the tasks in random order; here it is
    the order of the rows.

    Parameters
    ----------
    beta : float
        Weight :math:`\beta` of the newest similarity, in [0, 1).

    Attributes
    ----------
    targets : numpy.ndarray (L, T)
        The moving averages, per layer and old task. A new task starts at 0, so new rows of G must
        come last.

    References
    ----------
    Wang et al., Gradient vaccine: investigating and improving multi-task optimization in massively
    multilingual models, ICLR 2021.
    """

    # A similarity of 1 would need infinitely much of the old gradient.
    largest_target = 0.999

    def __init__(self, beta=0.01):
        if not 0 <= beta < 1:
            raise ValueError(f"beta={beta!r} is invalid: expected a number in [0, 1)")
        self.beta = beta
        self.targets = np.zeros((0, 0))

    def solve_layers(self, products):
        """Return the coefficients of all layers, and update the targets."""
        C, h, length = products.C, products.h, products.lengths
        targets = self._targets_for(*h.shape)
        c, square = np.zeros_like(h), _square(products).copy()  # square: ‖w‖²
        for task in range(h.shape[1]):
            product = h[:, task] + (C[:, task] * c).sum(axis=1)  # g_taskᵀ w
            size = np.sqrt(np.maximum(square, 0.0))
            # A gradient that is zero up to rounding has no direction.
            terms = products.square + ((c * length) ** 2).sum(axis=1)
            known = (square > products.tolerance * terms) & (length[:, task] > 0)
            unit = np.where(known, size, 1.0), np.where(known, length[:, task], 1.0)
            cosine = np.clip(product / unit[0] / unit[1], -1.0, 1.0)
            target = np.minimum(targets[:, task], self.largest_target)
            wanted = np.sqrt(1 - cosine**2) * target / np.sqrt(1 - target**2) - cosine
            a = np.where(known & (cosine < target), wanted * unit[0] / unit[1], 0.0)
            c[:, task] += a
            square += a * (2 * product + a * C[:, task, task])
            targets[known, task] += self.beta * (cosine - targets[:, task])[known]
        self.targets = targets
        return gp.Solution(c, corrected=(c != 0).any(axis=1))

    def _targets_for(self, L, T):
        """Return a copy of the targets with a column of zeros for each new task."""
        layers, tasks = self.targets.shape
        if self.targets.size and (layers != L or tasks > T):
            raise ValueError(
                f"GradVac has targets for {layers} layers and {tasks} tasks, and got {L} layers "
                f"and {T} tasks: use one GradVac per model, and append new tasks as last rows"
            )
        targets = np.zeros((L, T))
        if self.targets.size:
            targets[:, :tasks] = self.targets
        return targets

    def state_dict(self):
        """Return the targets as nested lists."""
        return {"targets": self.targets.tolist()}

    def load_state_dict(self, state):
        """Restore a `state_dict`."""
        if set(state) != {"targets"}:
            raise ValueError(f"state has {sorted(state)}: expected the state_dict() of a GradVac")
        targets = np.asarray(state["targets"], dtype=float)
        self.targets = targets if targets.ndim == 2 else np.zeros((0, 0))


class MGDA(gp.Method):
    r"""MGDA: take the shortest vector in the convex hull of all gradients.

    .. math:: \min_\alpha \|w\|^2, \quad w = \alpha_0\, g + \sum_i \alpha_i\, g_i
       \quad \text{s.t.} \quad \alpha \ge 0, \; \sum_i \alpha_i = 1

    At the solution every gradient has :math:`g_i^\top w \ge \|w\|^2`, so w decreases all losses,
    or it is zero and no direction does.

    With the Gram matrix M of all gradients, the constraint on the sum can be replaced by a penalty,
    which does not change the direction of the minimiser:

    .. math:: \min_{x \ge 0} x^\top M x + (1 - \textstyle\sum_i x_i)^2,
       \qquad \alpha = x / \textstyle\sum_i x_i

    That is the dual problem of :class:`gradproj.GEM`, which solves it exactly.

    References
    ----------
    Sener and Koltun, Multi-task learning as multi-objective optimization, NeurIPS 2018.
    """

    def solve_layers(self, products):
        """Return the weights α of all layers: α₀ is the scale of g."""
        L, T = products.h.shape
        M = np.empty((L, T + 1, T + 1))
        M[:, 0, 0] = _square(products)
        M[:, 0, 1:] = M[:, 1:, 0] = products.h
        M[:, 1:, 1:] = products.C
        # In units of the shortest gradient, which the solution cannot exceed.
        squares = np.diagonal(M, axis1=1, axis2=2)
        shortest = np.where(squares > 0, squares, np.inf).min(axis=1)
        M /= np.where(np.isfinite(shortest), shortest, 1.0)[:, None, None]
        penalised = gp.Products(M + 1, -np.ones((L, T + 1)), tolerance=products.tolerance)
        x = gp.GEM().solve_layers(penalised).coefficients
        alpha = x / x.sum(axis=1, keepdims=True)
        return gp.Solution(alpha[:, 1:], corrected=alpha[:, 0] < 1, scale=alpha[:, 0])


class CAGrad(gp.Method):
    r"""CAGrad: stay near g, and improve the loss that improves least as much as possible.

    .. math:: \max_w \min_i g_i^\top w \quad \text{s.t.} \quad \|w - g\| \le \rho \|g\|

    In the paper, g is the mean of the rows. For a given value :math:`\tau` of the minimum, the
    nearest w solves :class:`gradproj.GEM`'s problem with constraints
    :math:`g_i^\top w \ge \tau`. The largest :math:`\tau` within the distance is found by bisection.

    Parameters
    ----------
    rho : float
        Radius relative to :math:`\|g\|`, the paper's c, in [0, 1). 0 returns g.

    References
    ----------
    Liu et al., Conflict-averse gradient descent for multi-task learning, NeurIPS 2021.
    """

    def __init__(self, rho=0.5):
        if not 0 <= rho < 1:
            raise ValueError(f"rho={rho!r} is invalid: expected a number in [0, 1)")
        self.rho = rho

    def solve_layers(self, products):
        """Return the coefficients of all layers."""
        C, h, length = products.C, products.h, products.lengths
        radius = self.rho * np.sqrt(_square(products))
        best = np.zeros_like(h)
        if h.shape[1] == 0:
            return gp.Solution(best)
        low, high = h.min(axis=1), (h + radius[:, None] * length).min(axis=1)
        for _ in range(50):
            tau = (low + high) / 2
            shifted = gp.Products(C, h - tau[:, None], tolerance=products.tolerance)
            v = gp.GEM().solve_layers(shifted).coefficients
            change = (C @ v[:, :, None])[:, :, 0]  # G (w − g)
            near = (v * change).sum(axis=1) <= radius**2
            short = 1e-9 * radius[:, None] * length  # rounding of the constraints
            fits = near & (h + change >= tau[:, None] - short).all(axis=1)
            best[fits] = v[fits]
            low, high = np.where(fits, tau, low), np.where(fits, high, tau)
        return gp.Solution(best, corrected=(best != 0).any(axis=1))


class MEGA(gp.Method):
    r"""MEGA-I: weight the new gradient and the mean old gradient by their losses.

    .. math:: w = \alpha_1\, g + \alpha_2\, \bar g, \qquad (\alpha_1, \alpha_2) =
       \begin{cases} (1,\ \ell_\text{old} / \ell_\text{new}) & \ell_\text{new} > \varepsilon \\
       (0,\ 1) & \text{otherwise} \end{cases}

    This descends on the loss :math:`\alpha_1 \ell_\text{new} + \alpha_2 \ell_\text{old}`. The
    gradients do not contain the losses: set both attributes before each step.

    Attributes
    ----------
    new_loss, old_loss : float
        Loss of the new batch, and mean loss of the old tasks' batches.
    epsilon : float
        Below this loss the new task counts as learned.

    References
    ----------
    Guo et al., Improved schemes for episodic memory-based lifelong learning, NeurIPS 2020.
    """

    def __init__(self, epsilon=1e-3):
        self.epsilon = epsilon
        self.new_loss = self.old_loss = 1.0

    def solve_layers(self, products):
        """Return the same coefficients for all layers."""
        T = products.h.shape[1]
        if T == 0:
            return gp.Solution(products.h)
        learned = self.new_loss <= self.epsilon
        weight = 1.0 if learned else self.old_loss / self.new_loss
        return gp.Solution(np.full_like(products.h, weight / T), scale=0.0 if learned else 1.0)

    def reduce(self, T):
        """Return the mean: the products with each single old gradient are not needed."""
        return gp.Reduction(np.full(T, 1 / T), self)
