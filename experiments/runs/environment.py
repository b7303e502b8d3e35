"""The environment of a result beside its configuration: versions, commit, machine."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

__all__ = ["describe_environment", "describe_processor"]


def describe_environment(device: str = "cpu") -> dict[str, Any]:
    """Return the versions, the commit and the machine that a result depends on."""
    versions = {}
    for package in ("gradproj", "torch", "torchvision", "numpy", "scipy", "array-api-compat"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = ""
    return {
        "python": platform.python_version(),
        "versions": versions,
        "commit": _commit(),
        "platform": f"{sys.platform}-{platform.machine()}",
        **describe_processor(),
        "device": device,
        "threads": torch.get_num_threads(),
        "cpus": os.cpu_count(),
    }


def describe_processor() -> dict[str, str]:
    """Return what decides how sums are rounded: model, digest of the features, vector length."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    told: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        told.setdefault(key.strip(), value.strip())
    return {
        "processor": told.get("model name", platform.processor()),
        "flags": hashlib.sha256(told.get("flags", "").encode()).hexdigest()[:16],
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


def _commit() -> str:
    """Return the commit of the code that runs, "" if neither git nor the installer knows it."""
    here = Path(__file__)
    # If gradproj is installed inside another repository, do not report that commit.
    asked = (["ls-files", "--error-unmatch", here.name], ["rev-parse", "HEAD"])
    try:
        for words in asked:
            command = ["git", "-C", str(here.parent), *words]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return _installed_commit()
    return said.strip()


def _installed_commit() -> str:
    """Return the commit that the installer recorded for `pip install git+…` (PEP 610)."""
    try:
        noted = json.loads(metadata.distribution("gradproj").read_text("direct_url.json") or "{}")
        return str(noted["vcs_info"]["commit_id"])
    except (metadata.PackageNotFoundError, ValueError, KeyError, TypeError):
        return ""
