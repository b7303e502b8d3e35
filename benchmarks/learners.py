"""Streams and learners of the experiments' presets, for the benchmarks that train."""

from __future__ import annotations

from typing import Any

from gradproj.experiments import methods
from gradproj.experiments.data import DataError
from gradproj.experiments.methods.learner import Learner
from gradproj.experiments.methods.setup import Setup
from gradproj.experiments.runs import presets
from gradproj.experiments.runs.runner import stream_options
from gradproj.experiments.streams import Stream, benchmarks


def stream_at_hand(
    wanted: str, substitute: str, changes: dict[str, Any] | None = None
) -> tuple[str, Stream]:
    """Build the stream of a benchmark without downloading anything.

    Parameters
    ----------
    wanted : str
        Benchmark whose data may not be on this machine; `gradproj data where` shows the folder.
    substitute : str
        Benchmark on the embedded digits, used if the data are missing.
    changes : dict, optional
        Options of the substitute's stream. If given, the substitute is used in any case.

    Returns
    -------
    str, Stream
        The name of the benchmark that was built, and its stream.
    """
    if changes is None:
        try:
            return wanted, _stream(wanted, {}, download=False)
        except DataError:
            pass
    return substitute, _stream(substitute, changes or {})


def _stream(benchmark: str, changes: dict[str, Any], **options: Any) -> Stream:
    config = presets.find(f"{benchmark}/ours")
    return benchmarks.build(benchmark, **{**stream_options(config), **changes}, **options)


def learner(stream: Stream, preset: str) -> Learner:
    """Build the learner of a preset on a stream."""
    config = presets.find(preset)
    return methods.find(config.method)(Setup(config, stream))
