"""Run the core's tests on each mutant of mutants.toml and report which mutants they notice.

python tests/mutants/run.py                   all mutants; resumes where an earlier run stopped
python tests/mutants/run.py gem 'sgem-*'      the mutants with these names, files or patterns
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import hashlib
import importlib
import itertools
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
STATE = ROOT / "build" / "mutants.json"
# A mutant is applied to a copy of these.
FOLDERS = ("gradproj", "tests/core", "tests/support")
FILES = ("pyproject.toml", "tests/conftest.py")
UNCHANGED = "(unchanged core)"  # a key of the state beside the names of mutants
TARGET = 0.95
# A mutant that runs this much longer than the unchanged core does not end: it counts as killed.
PATIENCE = 5


@dataclass(frozen=True)
class Mutant:
    """One change of one file in gradproj/."""

    file: str
    name: str
    before: str
    after: str
    breaks: str
    equivalent: str = ""
    tests: tuple[str, ...] = ()

    def apply(self, source: str) -> str:
        """Return the source with the change; raise unless the text occurs exactly once."""
        if (found := source.count(self.before)) != 1:
            raise ValueError(f"{self.name}: its text occurs {found} times in {self.file}, not once")
        return source.replace(self.before, self.after)


def load() -> tuple[list[Mutant], dict[str, list[str]]]:
    """Return the mutants, and the test files for each module or folder."""
    content = tomllib.loads((HERE / "mutants.toml").read_text(encoding="utf-8"))
    tests = content.pop("tests")
    mutants = [
        Mutant(file, **{**entry, "tests": tuple(entry.get("tests", ()))})
        for file, entries in content.items()
        for entry in entries
    ]
    return mutants, tests


def tests_for(mutant: Mutant, tests: dict[str, list[str]]) -> list[str]:
    """Return the test files to run on a mutant, in order."""
    if mutant.tests:
        return list(mutant.tests)
    folder = Path(mutant.file).parts[0]
    return tests.get(mutant.file) or tests.get(folder) or tests["default"]


def run_tests(mutant: Mutant | None, tests: list[str], limit: float | None) -> tuple[str, str]:
    """Run the tests on a copy of the core; return the outcome and the test that failed first."""
    with tempfile.TemporaryDirectory(prefix="gradproj-mutant-") as folder:
        copy = Path(folder)
        skipped = shutil.ignore_patterns("__pycache__")
        for part in FOLDERS:
            shutil.copytree(ROOT / part, copy / part, ignore=skipped)
        for part in FILES:
            shutil.copy(ROOT / part, copy / part)
        if mutant is not None:
            path = copy / "gradproj" / mutant.file
            path.write_text(mutant.apply(path.read_text("utf-8")), encoding="utf-8")
        for test in tests:
            code = run_one(copy, test, limit)
            output = (copy / "output").read_text(encoding="utf-8", errors="replace")
            if code is None:
                return "killed", "time limit"
            if code == pytest.ExitCode.OK:
                continue
            failed = [x for x in output.splitlines() if x.startswith(("FAILED ", "ERROR "))]
            if not failed:
                raise SystemExit(f"pytest failed with code {code} on {test}:\n{output}")
            return "killed", failed[0].partition(" ")[2].partition(" - ")[0]
    return "survived", ""


def run_one(copy: Path, test: str, limit: float | None) -> int | None:
    """Run a test or a file of tests in a fork of this process; return None at the time limit.

    A fork has the large libraries in memory already. Importing them takes longer than most mutants
    live.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about threads: the tests use one
        child = os.fork()
    if child == 0:
        try:
            output = os.open(copy / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.chdir(copy)
            sys.path.insert(0, str(copy))  # so that `import gradproj` finds the copy
            options = ["-x", "-q", "--no-header", "--tb=no", "-rfE", "-p", "no:cacheprovider"]
            code = int(pytest.main([*options, test]))
            sys.stdout.flush()
            os._exit(code)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(pytest.ExitCode.INTERNAL_ERROR)
    end = math.inf if limit is None else time.monotonic() + limit
    while True:
        finished, status = os.waitpid(child, os.WNOHANG)
        if finished:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.02)


def fingerprint(mutant: Mutant) -> str:
    """Return a digest of the mutated module: while it is the same, a killed mutant stays dead."""
    source = (ROOT / "gradproj" / mutant.file).read_text(encoding="utf-8")
    return hashlib.sha256(mutant.apply(source).encode()).hexdigest()


def check(mutant: Mutant, files: list[str], known: dict[str, str], limit: float) -> dict[str, str]:
    """Return the outcome for a mutant. The test that killed it last time runs first, alone."""
    killer = known.get("killer", "")
    outcome = "survived"
    if "::" in killer and (ROOT / killer.partition("::")[0]).exists():
        try:
            outcome, killer = run_tests(mutant, [killer], limit)
        except SystemExit:
            outcome = "survived"  # the test has another name now
    if outcome == "survived":
        outcome, killer = run_tests(mutant, files, limit)
    return {"killer": killer, "killed": fingerprint(mutant) if outcome == "killed" else ""}


def time_limit(state: dict[str, dict[str, Any]], tests: dict[str, list[str]]) -> float:
    """Return the seconds that a mutant may take; raise unless the unchanged core passes its tests.

    It takes minutes, so it is done once for each version of the core and its tests.
    """
    digest = hashlib.sha256()
    folders = (sorted((ROOT / part).rglob("*.py")) for part in FOLDERS)
    for path in (*(ROOT / part for part in FILES), *itertools.chain(*folders)):
        digest.update(path.read_bytes())
    known = state.get(UNCHANGED, {})
    if known.get("digest") != digest.hexdigest():
        print("first the unchanged core … ", end="", flush=True)
        start = time.monotonic()
        outcome, failed = run_tests(None, sorted({f for fs in tests.values() for f in fs}), None)
        if outcome != "survived":
            raise SystemExit(f"the unchanged core fails {failed}: repair it first")
        known = {"digest": digest.hexdigest(), "seconds": time.monotonic() - start}
        state[UNCHANGED] = known
    return max(60.0, PATIENCE * known["seconds"])


def main() -> int:
    """Check the chosen mutants and print a table; return 1 below the target."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("patterns", nargs="*", help="names, files or patterns; default: all")
    parser.add_argument("--again", action="store_true", help="repeat mutants that were checked")
    parser.add_argument("--list", action="store_true", help="list the mutants and stop")
    options = parser.parse_args()
    mutants, tests = load()
    chosen = [
        mutant
        for mutant in mutants
        if not options.patterns
        or any(
            fnmatch.fnmatch(text, pattern)
            for pattern in options.patterns
            for text in (mutant.name, mutant.file, Path(mutant.file).stem.strip("_"))
        )
    ]
    if not chosen:
        raise SystemExit(f"no mutant matches {' '.join(options.patterns)}: see --list")
    if options.list:
        for mutant in chosen:
            print(f"{mutant.file:26} {mutant.name:36} {mutant.breaks}")
        return 0
    state = json.loads(STATE.read_text()) if STATE.exists() else {}
    STATE.parent.mkdir(exist_ok=True)

    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    for name in ("scipy.linalg", "scipy.optimize", "array_api_strict", "torch"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    limit = None
    results: dict[str, str] = {}
    for number, mutant in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {mutant.name}: ", end="", flush=True)
        known = state.get(mutant.name, {})
        if mutant.equivalent:
            results[mutant.name] = "equivalent"
            print("equivalent")
            continue
        if options.again or known.get("killed") != fingerprint(mutant):
            if limit is None:
                limit = time_limit(state, tests)
            known = check(mutant, tests_for(mutant, tests), known, limit)
            state[mutant.name] = known
            STATE.write_text(json.dumps(state, indent=1))
        results[mutant.name] = "killed" if known["killed"] else "survived"
        print(results[mutant.name], known["killer"])

    count = {
        kind: list(results.values()).count(kind) for kind in ("killed", "survived", "equivalent")
    }
    tested = count["killed"] + count["survived"]
    score = count["killed"] / tested if tested else 1.0
    print()
    for mutant in chosen:
        if results[mutant.name] == "survived":
            print(f"survived: {mutant.name} ({mutant.file}): {mutant.breaks}")
    print(f"{'killed':>12} {'survived':>12} {'equivalent':>12} {'score':>8}")
    print(f"{count['killed']:12} {count['survived']:12} {count['equivalent']:12} {score:8.1%}")
    return 0 if score >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
