"""An inspection as a table, as a figure, and as advice on rank, strength and layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rich import box
from rich.table import Table

from gradproj.experiments.inspection.gradients import Inspection, LayerView
from gradproj.experiments.reports.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["advise", "draw", "tabulate"]


def tabulate(found: Inspection, title: str, share: float = 0.9) -> Table:
    """Make a table that fits 80 columns, with one row per layer and one for the whole network."""
    table = Table(
        title=title,
        title_justify="left",
        caption="|g|, |gᵢ|: mean norms of the new and the old gradients. g·gᵢ, gᵢ·gⱼ: mean "
        "cosines between them. opp: steps on which g opposes the mean of the old gradients. "
        "spec: task-specific share of the old gradients. K: directions that hold "
        f"{share:.0%} of it. sum: |Σgᵢ| / |g|.",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    # Names may be folded; numbers must not be cut.
    table.add_column("layer", overflow="fold", min_width=16)
    for column in ("size", "|g|", "|gᵢ|", "g·gᵢ", "gᵢ·gⱼ", "opp", "spec", "K", "sum"):
        table.add_column(column, justify="right", no_wrap=True)
    for layer in (*found.layers, found.whole):
        table.add_row(*_cells(layer, share), style="bold" if layer.name == "all" else "")
    return table


def _cells(layer: LayerView, share: float) -> tuple[str, ...]:
    cosines, tasks = layer.cosines, len(layer.cosines) - 1
    between = cosines[:-1, :-1][np.triu_indices(tasks, 1)]
    return (
        layer.name,
        f"{layer.size:,}",
        f"{layer.new_norms.mean():.2g}",
        f"{layer.old_norms.mean():.2g}",
        f"{cosines[-1, :-1].mean():+.2f}",
        f"{between.mean():+.2f}",
        f"{layer.conflict:.0%}",
        f"{layer.specific_share:.0%}",
        f"{layer.rank_for(share)}/{tasks - 1}",
        f"{layer.replay_size:.2g}",
    )


def advise(found: Inspection, share: float = 0.9) -> list[str]:
    """Give advice on `rank`, `strength` and `layers` from the measurements."""
    ranks = [layer.rank_for(share) for layer in found.layers]
    norms = [float(layer.new_norms.mean()) for layer in found.layers if layer.new_norms.any()]
    replay, tasks = found.whole.replay_size, found.whole.products.shape[1] - 1
    lines = [
        f"rank: {share:.0%} of the task-specific part lies in {_between(ranks)} directions "
        f"per layer (whole network: {found.whole.rank_for(share)}); "
        f"rank={'None' if share == 1 else f'{share:g}'} chooses these.",
        f"strength: the old gradients' sum is {replay:.2g} times as long as the new gradient, so "
        f"strength=0.5 adds {0.5 * replay:.2g} times its length with replay='sum', and strength=1 "
        f"adds {replay / max(tasks, 1):.2g} times its length with replay='mean'.",
    ]
    if norms:
        lines.append(
            f"layers: gradient norms differ by a factor of {max(norms) / min(norms):.2g} between "
            "layers; with layers='all' the largest dominate."
        )
    used_up = [layer.name for layer in found.layers if layer.used_up]
    if used_up:
        lines.append(
            f"layers: {', '.join(used_up)} have at most as many parameters as there are "
            "directions; limit the rank, or group them with other layers."
        )
    return lines


def _between(numbers: list[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def draw(found: Inspection, title: str, share: float = 0.9) -> Figure:
    """Draw norms, cosines and spectra of all layers."""
    names = [layer.name for layer in found.layers]
    height = max(3.4, 0.2 * len(names) + 1.4)
    made = style.figure(13.0, height)
    made.suptitle(title)
    left, middle, right = made.subplots(1, 3)
    at = np.arange(len(names))
    for layer, y in zip(found.layers, at, strict=True):
        old = layer.old_norms.mean(axis=0)
        left.plot(old, [y] * len(old), "o", color=style.colour(0), alpha=0.6,
                  label="each old task" if y == 0 else None)  # fmt: skip
        left.plot(layer.new_norms.mean(), y, "D", color=style.colour(1), markersize=6,
                  label="new task" if y == 0 else None)  # fmt: skip
        cosines = layer.cosines
        tasks = len(cosines) - 1
        middle.plot(cosines[:-1, :-1][np.triu_indices(tasks, 1)], [y] * (tasks * (tasks - 1) // 2),
                    "o", color=style.colour(0), alpha=0.35,
                    label="two old tasks" if y == 0 else None)  # fmt: skip
        middle.plot(cosines[-1, :-1], [y] * tasks, "D", color=style.colour(1),
                    label="new and old" if y == 0 else None)  # fmt: skip
    for axes in (left, middle):
        axes.set_yticks(at, names)
        axes.invert_yaxis()
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    left.set(xscale="log", xlabel="norm of the gradient", ylabel="layer")
    style.plain_log_ticks(left.xaxis)
    middle.set(xlabel="cosine between gradients", xlim=(-1.02, 1.02))
    middle.tick_params(labelleft=False)
    middle.axvline(0, color="gray", linewidth=1)
    _spectra(right, found, share)
    return made


def _spectra(axes: Axes, found: Inspection, share: float) -> None:
    few = len(found.layers) <= len(style.COLOURS)
    for number, layer in enumerate(found.layers):
        kept = 100 * np.concatenate([[0.0], np.cumsum(layer.spectrum)])
        axes.plot(
            kept,
            marker=style.marker(number) if few else None,
            color=style.colour(number) if few else style.colour(0),
            alpha=1.0 if few else 0.35,
            label=layer.name if few else ("each layer" if number == 0 else None),
        )
    whole = 100 * np.concatenate([[0.0], np.cumsum(found.whole.spectrum)])
    axes.plot(whole, color="black", linestyle="--", label="whole network")
    axes.axhline(100 * share, color="gray", linewidth=1)
    axes.set(xlabel="directions K", ylabel="task-specific part kept (%)", ylim=(0, 103))
    style.whole_ticks(axes.xaxis)
    style.legend_beside(axes)
