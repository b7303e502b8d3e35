"""Two-dimensional pictures of the projections, computed by gradproj itself.

    python docs/pictures.py FOLDER

Writes one SVG file per projection and theme into the folder: ``gem-light.svg``, ``gem-dark.svg``, …
The documentation site calls `draw_all` when it is built.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse

import gradproj as gp


@dataclass(frozen=True)
class Theme:
    """Colours of one theme of the site."""

    name: str
    ink: str
    old: str
    new: str
    update: str
    area: str


THEMES = (
    Theme("light", "#3b3f46", "#8a8f98", "#2563eb", "#c2410c", "#16a34a22"),
    Theme("dark", "#cfd3da", "#8a8f98", "#7aa8ff", "#ff9d5c", "#4ade8026"),
)

LEFT, RIGHT = -2.1, 2.6
# The new gradient, and the gradients of two old tasks. Both conflict with it.
g = np.asarray([1.9, 0.35])
G = np.asarray([[-0.45, 1.35], [-1.25, 0.55]])
# Second moments of the inputs of an old task: large along one diagonal.
ANGLE = np.pi / 5
AXES = np.asarray([[np.cos(ANGLE), np.sin(ANGLE)], [-np.sin(ANGLE), np.cos(ANGLE)]])
S = AXES.T @ np.diag([1.0, 0.04]) @ AXES
new_layer = np.asarray([[1.9, 0.35]])


def arrow(axes: Axes, vector: np.ndarray, label: str, colour: str, width: float = 1.8) -> None:
    """Draw a vector from the origin, with its label beyond the tip."""
    style = {"arrowstyle": "-|>,head_width=0.28,head_length=0.55", "color": colour, "lw": width}
    axes.annotate(
        "", xy=tuple(vector), xytext=(0, 0), arrowprops={**style, "shrinkA": 0, "shrinkB": 0}
    )
    beyond = vector + 0.2 * vector / max(float(np.linalg.norm(vector)), 1e-9)
    axes.text(*beyond, label, color=colour, ha="center", va="center")


def allowed(axes: Axes, normals: np.ndarray, theme: Theme) -> None:
    """Shade the directions that increase no loss with one of these gradients."""
    x, y = np.meshgrid(np.linspace(-4, 4, 801), np.linspace(-4, 4, 801))
    inside = np.all(normals @ np.stack([x.ravel(), y.ravel()]) >= 0, axis=0).reshape(x.shape)
    axes.contourf(x, y, inside, levels=[0.5, 1.5], colors=[theme.area])


def gradients(axes: Axes, theme: Theme, w: np.ndarray, mean: bool = False) -> None:
    """Draw the old gradients, the new one and the update."""
    for i, old in enumerate(G, 1):
        arrow(axes, old, f"$g_{i}$", theme.old, 1.2)
    if mean:
        arrow(axes, G.mean(axis=0), r"$\bar g$", theme.ink, 1.5)
    arrow(axes, g, "$g$", theme.new)
    axes.plot(*zip(g, w, strict=True), color=theme.ink, lw=0.9, ls=":")
    arrow(axes, w, "$w$", theme.update, 2.4)


def gem(axes: Axes, theme: Theme) -> None:
    """GEM: the nearest direction that increases no old task's loss."""
    allowed(axes, G, theme)
    gradients(axes, theme, gp.project(g, G, gp.GEM()))


def agem(axes: Axes, theme: Theme) -> None:
    """A-GEM: the nearest direction that does not increase the old tasks' mean loss."""
    allowed(axes, G.mean(axis=0, keepdims=True), theme)
    gradients(axes, theme, gp.project(g, G, gp.AGEM()), mean=True)


def sgem(axes: Axes, theme: Theme) -> None:
    """S-GEM: as A-GEM, for one old task that is drawn at random; here the first."""
    allowed(axes, G[:1], theme)
    gradients(axes, theme, gp.project(g, G[:1], gp.SGEM()))


def decomposed(axes: Axes, theme: Theme) -> None:
    """Gradient decomposition: both old losses change alike, and do not increase."""
    allowed(axes, G.mean(axis=0, keepdims=True), theme)
    specific = G[0] - G[1]
    along = np.asarray([-specific[1], specific[0]]) / np.linalg.norm(specific)
    axes.plot(*np.outer(along, [-4, 4]), color=theme.ink, lw=0.9)
    axes.text(1.35, -0.85, "$Bw=0$", color=theme.ink, ha="center", va="center")
    # A new gradient that agrees with the mean, so that the line is reached inside the half-plane.
    mine = np.asarray([0.55, 1.75])
    w = gp.project(mine, G, gp.Decomposed())
    for i, old in enumerate(G, 1):
        arrow(axes, old, f"$g_{i}$", theme.old, 1.2)
    arrow(axes, mine, "$g$", theme.new)
    axes.plot(*zip(mine, w, strict=True), color=theme.ink, lw=0.9, ls=":")
    arrow(axes, w, "$w$", theme.update, 2.4)


def replay(axes: Axes, theme: Theme) -> None:
    """Replay, the control: add the mean of the old gradients, without a constraint."""
    control = gp.Decomposed(shared=False, specific=False, strength=1.0)
    gradients(axes, theme, gp.project(g, G, control), mean=True)


def inputs(axes: Axes, theme: Theme) -> None:
    """Draw the old inputs as an ellipse, and the new gradient."""
    lengths, turn = 2 * np.sqrt([1.0, 0.04]), np.degrees(ANGLE)
    axes.add_patch(
        Ellipse((0, 0), 2 * lengths[0], 2 * lengths[1], angle=turn, fc=theme.area, ec=theme.old)
    )
    axes.text(-1.0, -1.45, "old inputs", color=theme.old, ha="center")
    arrow(axes, new_layer[0], "$g$", theme.new)


def preserve(axes: Axes, theme: Theme) -> None:
    """Preserve: shrink the gradient along the old inputs, the more the stronger λ is."""
    inputs(axes, theme)
    path = np.stack(
        [gp.preserve(new_layer, S, strength=s)[0] for s in np.geomspace(1e-3, 1e5, 200)]
    )
    axes.plot(*path.T, color=theme.ink, lw=0.9, ls=":")
    for strength in (1.0, 10.0):
        w = gp.preserve(new_layer, S, strength=strength)[0]
        arrow(axes, w, "", theme.update, 2.4 if strength == 10 else 1.4)
        axes.text(
            w[0] + 0.16, w[1] - 0.12, rf"$\lambda={strength:.0f}$", color=theme.update, va="center"
        )


def hard(axes: Axes, theme: Theme) -> None:
    """GPM: remove the part of the gradient along the old inputs; SGP removes a share of it."""
    inputs(axes, theme)
    axes.plot(*np.outer(AXES[1], [-4, 4]), color=theme.ink, lw=0.9)
    basis = gp.input_basis(S, share=0.9)
    w = gp.preserve(new_layer, basis=basis)[0]
    scaled = gp.InputBasis(basis.vectors, np.asarray([0.6]))
    part = gp.preserve(new_layer, basis=scaled)[0]
    axes.plot(*zip(new_layer[0], w, strict=True), color=theme.ink, lw=0.9, ls=":")
    arrow(axes, part, "", theme.update, 1.4)
    axes.text(part[0] + 0.36, part[1] - 0.1, "SGP", color=theme.update, ha="center", va="center")
    arrow(axes, w, "", theme.update, 2.4)
    axes.text(w[0] + 0.34, w[1] - 0.1, "GPM", color=theme.update, ha="center", va="center")


# Each picture with the heights that it shows, so that none has an empty margin.
PICTURES: dict[str, tuple[Callable[[Axes, Theme], None], tuple[float, float]]] = {
    "gem": (gem, (-0.85, 1.8)),
    "agem": (agem, (-0.85, 1.8)),
    "sgem": (sgem, (-0.85, 1.8)),
    "decomposed": (decomposed, (-1.2, 2.1)),
    "replay": (replay, (-0.2, 1.8)),
    "preserve": (preserve, (-1.6, 1.45)),
    "hard": (hard, (-1.6, 1.45)),
}


def draw_all(folder: Path) -> None:
    """Write all pictures, one file per theme."""
    folder.mkdir(parents=True, exist_ok=True)
    for theme in THEMES:
        for name, (draw, (bottom, top)) in PICTURES.items():
            with mpl.rc_context({"svg.hashsalt": name, "mathtext.fontset": "cm", "font.size": 12}):
                figure = Figure(figsize=(3.4, 3.4 * (top - bottom) / (RIGHT - LEFT)))
                axes = figure.add_axes((0, 0, 1, 1))
                axes.set(xlim=(LEFT, RIGHT), ylim=(bottom, top), aspect="equal")
                axes.axis("off")
                draw(axes, theme)
                axes.plot(0, 0, "o", ms=3.5, color=theme.ink)
                path = folder / f"{name}-{theme.name}.svg"
                figure.savefig(path, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    draw_all(Path(sys.argv[1]))
