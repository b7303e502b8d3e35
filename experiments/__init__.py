"""Benchmarks, baselines, runs and reports.

Everything that the command line runs can be run from Python: `presets.find` and `config.resolve`
make a configuration, `runner.run` runs it in a folder.

Examples
--------
>>> import json, tempfile
>>> from pathlib import Path
>>> from gradproj.experiments.runs import presets
>>> from gradproj.experiments.runs.runner import run
>>> config = presets.find("permuted-digits/ours", {"stream": {"tasks": 2, "samples": 20}})
>>> with tempfile.TemporaryDirectory() as folder:
...     finished = run(config, folder)
...     result = json.loads(Path(folder, "result.json").read_text())
>>> finished, len(result["accuracy_matrix"]), sorted(result["metrics"])[0]
(True, 2, 'acc')
"""
