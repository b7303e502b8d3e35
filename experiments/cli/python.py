"""`gradproj.experiments.run`: the counterpart of `gradproj run` in Python."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from gradproj.experiments.cli.display import make_display
from gradproj.experiments.common.errors import ConfigError
from gradproj.experiments.common.tables import merge
from gradproj.experiments.methods.config import RunConfig
from gradproj.experiments.reports.result import Result, read_result
from gradproj.experiments.runs import presets
from gradproj.experiments.runs.events import ignore, throttled
from gradproj.experiments.runs.resolve import complete
from gradproj.experiments.runs.runner import run as run_in_folder
from gradproj.experiments.streams import Stream

__all__ = ["run"]


def run(
    preset: str | RunConfig | None = None,
    folder: str | Path | None = None,
    *,
    benchmark: str | Stream | None = None,
    method: str | None = None,
    data_dir: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    device: str = "cpu",
    progress: bool = True,
    **values: Any,
) -> Result:
    """Train and evaluate one configuration, as `gradproj run` does, and return its result.

    The run uses one thread, so that its numbers equal those of the command line. It seeds the
    global random generators and turns on torch's deterministic algorithms.

    Parameters
    ----------
    preset : str or RunConfig, optional
        A name from `gradproj list`, or a configuration from `gradproj.experiments.preset`.
    folder : path, optional
        Keep the run in this folder; a finished run in it is read, not repeated. Without it the
        run uses a temporary folder that is removed.
    benchmark : str or Stream, optional
        Together with `method`, in place of a preset: a name, "module:function", or tasks of your
        own data from `gradproj.experiments.split`, `permuted` or `rotated`.
    method : str, optional
        A name from `gradproj list`, or "module:class" for your own.
    data_dir : path, optional
        Folder of the data sets. The default is GRADPROJ_DATA, or the user's cache.
    resume, force : bool
        Continue an unfinished run in `folder`; start over, even if it is finished.
    device : str
        The torch device.
    progress : bool
        Whether to show progress, in the form that suits terminals, notebooks or logs.
    **values
        Values of the configuration under the keys of `--set`: `seed=1`, `epochs=3`, `lr=0.03`,
        and groups as a mapping, `memory={"batch": 0}`, or dotted,
        `**{"options.strength": 0.25}`.

    Returns
    -------
    Result
        Accuracy matrix and metrics, with `plot` and `to_dataframe`.

    Raises
    ------
    ConfigError
        An argument cannot be used; the message names the nearest one that can.
    RunError
        The folder holds another run, or the training diverged.

    Examples
    --------
    >>> from gradproj.experiments import run
    >>> result = run("permuted-digits/ours", seed=0, epochs=1, stream={"tasks": 2}, progress=False)
    >>> result.accuracy_matrix.shape, sorted(result.metrics)[0]
    ((2, 2), 'acc')
    """
    stream = benchmark if isinstance(benchmark, Stream) else None
    if stream is not None and folder is not None:
        raise ConfigError(
            "folder cannot be used with a Stream, which has no name to load it by; leave folder "
            "out, or pass benchmark='module:function'"
        )
    config = _configure(preset, benchmark, method, _nested(values))
    with tempfile.TemporaryDirectory() if folder is None else nullcontext(folder) as place:
        name = f"{config.benchmark}/{config.method}/seed-{config.seed}"
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with make_display([name]) if progress else nullcontext(ignore) as show:
                run_in_folder(
                    config,
                    place,
                    stream=stream,
                    data_dir=None if data_dir is None else Path(data_dir),
                    resume=resume,
                    force=force,
                    device=device,
                    report=throttled(show, name),
                )
        finally:
            torch.set_num_threads(threads)
        return read_result(config, Path(place), kept=folder is not None)


def _configure(
    preset: str | RunConfig | None,
    benchmark: str | Stream | None,
    method: str | None,
    values: Mapping[str, Any],
) -> RunConfig:
    if (preset is None) != (benchmark is not None and method is not None) or (
        preset is not None and (benchmark is not None or method is not None)
    ):
        raise ConfigError("pass a preset, or both benchmark and method")
    if preset is not None and not isinstance(preset, str | RunConfig):
        raise ConfigError(
            f"preset is a {type(preset).__name__}; pass a name from `gradproj list`, such as "
            "'permuted-digits/ours', or a RunConfig"
        )
    if benchmark is not None and not isinstance(benchmark, str | Stream):
        raise ConfigError(
            f"benchmark is a {type(benchmark).__name__}; pass a name from `gradproj list`, or a "
            "Stream from gradproj.experiments.split, permuted or rotated"
        )
    if method is not None and not isinstance(method, str):
        raise ConfigError(
            f"method={method!r} is not a name; pass one from `gradproj list`, or 'module:class'"
        )
    if isinstance(preset, RunConfig):
        if values:
            raise ConfigError(
                f"{next(iter(values))} cannot be changed in a RunConfig; pass it to "
                "gradproj.experiments.preset, or pass the name of the preset here"
            )
        return preset
    if preset is not None:
        return presets.find(preset, values)
    assert method is not None
    if isinstance(benchmark, Stream):
        if "stream" in values:
            raise ConfigError("stream cannot be changed in a Stream; change it where it is made")
        return complete(merge(values, {"benchmark": benchmark.name, "method": method}))
    assert benchmark is not None
    return presets.compose(benchmark, method, values)


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn dotted keys into mappings, as --set does."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        for part in reversed(key.split(".")):
            value = {part: value}
        found = merge(found, value)
    return found
