"""The style of all figures, with colours that colour-blind readers can distinguish.

Matplotlib is imported inside functions, so that commands without figures start faster.
"""

from __future__ import annotations

import hashlib
import html
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

from gradproj.experiments.common.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "MARKERS", "colour", "dashes", "embedded", "figure", "legend_beside",
           "marker", "plain_log_ticks", "save", "styled", "to_svg", "whole_ticks"]  # fmt: skip

# The palette of Okabe and Ito without black (used for text) and yellow (too pale on white).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7F7F7F")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

# Text, axes and grid of embedded figures take the colour of the page, light or dark.
_INK = "#010203"


def colour(number: int) -> str:
    """Return the colour of the line with this number."""
    return COLOURS[number % len(COLOURS)]


def marker(number: int) -> str:
    """Return the marker of the line with this number; it changes with the colour."""
    return MARKERS[(number + number // len(COLOURS)) % len(MARKERS)]


def dashes(number: int) -> str:
    """Return the kind of line: solid for the first round of colours, dashed for the second."""
    return "--" if number // len(COLOURS) % 2 else "-"


@contextmanager
def styled(ink: str = "black") -> Iterator[None]:
    """Draw in the style of the project; `ink` is the colour of text and axes."""
    from matplotlib import rc_context

    settings: dict[Any, Any] = {
        "axes.edgecolor": ink,
        "axes.labelcolor": ink,
        "axes.titlesize": "medium",
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "font.size": 9.0,
        "grid.alpha": 0.25,
        "grid.color": ink,
        "legend.frameon": False,
        "legend.labelcolor": ink,
        "lines.markersize": 4.0,
        "svg.hashsalt": "gradproj",
        "text.color": ink,
        "text.parse_math": False,  # A dollar sign in a value does not start a formula.
        "xtick.color": ink,
        "ytick.color": ink,
    }
    with rc_context(settings):
        yield


@contextmanager
def embedded() -> Iterator[None]:
    """Draw a figure that `to_svg` will put into a page."""
    from matplotlib import rc_context

    settings: dict[Any, Any] = {
        # Text instead of outlines, which made up most of a long page's size.
        "svg.fonttype": "none",
        # Short, because each text repeats the list of families.
        "font.family": ["DejaVu Sans", "sans-serif"],
    }
    with styled(_INK), rc_context(settings):
        yield


def figure(
    width: float, height: float, layout: Literal["constrained"] | None = "constrained"
) -> Figure:
    """Make an empty figure that can be drawn without a window system."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), layout=layout)
    FigureCanvasAgg(made)
    return made


def legend_beside(axes: Axes) -> None:
    """Put the legend to the right of the axes, where it does not cover data."""
    handles, labels = axes.get_legend_handles_labels()
    # A long line would leave no room for the axes.
    folded = ["\n".join(wrap(label, 36, max_lines=3, placeholder=" …")) for label in labels]
    axes.legend(handles, folded, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0,
                fontsize="small")  # fmt: skip


def plain_log_ticks(axis: Axis) -> None:
    """Write 0.5, 1, 2 along a logarithmic axis, with few enough ticks to fit."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=8))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def whole_ticks(axis: Axis, most: int | Literal["auto"] = "auto") -> None:
    """Write whole numbers along an axis, at most this many."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(most, integer=True))


def to_svg(made: Figure, name: str) -> str:
    """Return a figure drawn under `embedded` as SVG for a page.

    Parameters
    ----------
    made : Figure
    name : str
        Must be unique on the page; screen readers read it.
    """
    out = io.StringIO()
    metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
    made.savefig(out, format="svg", transparent=True, metadata=metadata)
    text = out.getvalue()
    text = text[text.index("<svg") :]
    # Clips and markers are referenced by ids, which must be unique on the page; ids that are not
    # referenced are dropped. Only tags are changed, because labels are arbitrary text from files.
    prefix = f"f{hashlib.sha256(name.encode()).hexdigest()[:10]}-"
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', text))

    def name_of(found: re.Match[str]) -> str:
        return f' id="{prefix}{found[1]}"' if found[1] in used else ""

    def rename(tag: re.Match[str]) -> str:
        named = re.sub(r' id="([^"]+)"', name_of, tag[0]).replace(_INK, "currentColor")
        return re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}", named)

    text = re.sub(r"<[^>]*>", rename, text)
    # The style of the page limits the width by it: a narrow figure would fill the page otherwise.
    width = f"{1.4 * made.get_figwidth():.3g}in"
    about = f'role="img" aria-label="{html.escape(name)}" style="--natural: {width}"'
    return text.replace("<svg ", f"<svg {about} ", 1)


def check_kind(path: Path) -> str:
    """Return the format of a figure's file by its suffix; raise if it cannot be written."""
    from matplotlib.backend_bases import FigureCanvasBase

    kind = path.suffix.removeprefix(".") or "png"
    known = FigureCanvasBase.get_supported_filetypes()
    if kind not in known:
        raise ValueError(
            f"--out {path.name}: the suffix .{kind} is not a known format; use one of "
            f"{', '.join(sorted(known))}"
        )
    return kind


def save(made: Figure, path: Path) -> Path:
    """Write a figure to a file in the format of its suffix."""
    kind = check_kind(path)
    out = io.BytesIO()
    made.savefig(out, format=kind, dpi=150)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, out.getvalue())
    return path
