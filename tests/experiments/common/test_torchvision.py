"""torchvision is imported as it is where that works, and helped only where it does not."""

import subprocess
import sys
import types

import pytest

from gradproj.experiments.common import torchvision
from gradproj.experiments.common.torchvision import import_torchvision


def test_parts_can_be_imported():
    assert import_torchvision().__name__ == "torchvision"
    assert import_torchvision("datasets").MNIST.__name__ == "MNIST"


def test_a_fresh_interpreter_imports_it_without_warnings():
    code = (
        "from gradproj.experiments.common.torchvision import import_torchvision;"
        "print(import_torchvision('models').resnet18(num_classes=3).fc.out_features)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "3"


def test_nothing_is_declared_where_the_import_works(monkeypatch):
    monkeypatch.setattr(torchvision, "_declare_operators", pytest.fail)
    monkeypatch.setattr(torchvision.importlib, "import_module", lambda name: types.ModuleType(name))
    assert import_torchvision("datasets").__name__ == "torchvision.datasets"


def test_other_failures_are_passed_on(monkeypatch):
    def fail(_):
        raise RuntimeError("something else")

    monkeypatch.setattr(torchvision, "_declare_operators", pytest.fail)
    monkeypatch.setattr(torchvision.importlib, "import_module", fail)
    with pytest.raises(RuntimeError, match="something else"):
        import_torchvision()


def test_operators_are_declared_once_the_import_has_failed(monkeypatch):
    calls = []

    def flaky(name):
        calls.append(name)
        if len(calls) == 2:
            raise RuntimeError("operator torchvision::nms does not exist")
        return types.ModuleType(name)

    monkeypatch.setattr(torchvision.importlib, "import_module", flaky)
    monkeypatch.setattr(torchvision, "_declare_operators", lambda: calls.append("declared"))
    monkeypatch.setattr(torchvision.sys, "modules", {"torchvision.half": None, "other": None})
    import_torchvision("models")
    assert calls == ["torchvision.models"]
    import_torchvision("models")
    assert calls[1:] == ["torchvision.models", "declared", "torchvision.models"]
    assert list(torchvision.sys.modules) == ["other"]
