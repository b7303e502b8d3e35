"""Results stay what they were: every method against its golden results.

`make golden` records the cases of new methods; see tests/golden/record.py.
"""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

PATH = Path(__file__).parent / "golden" / "record.py"
spec = importlib.util.spec_from_file_location("golden_record", PATH)
record = sys.modules["golden_record"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(record)

from gradproj.experiments.common import seeds  # noqa: E402
from gradproj.experiments.networks import Network  # noqa: E402

CASES, STORED = record.cases(), record.load()
# Other vector instructions changed a loss by at most 8e-7 (AVX512, AVX2, SSE; torch 2.13), and no
# prediction. A changed draw changes a loss by 1e-3 or more.
LOSS, ACCURACY = 1e-4, 0.03


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def near(found, stored):
    """Whether two results differ by no more than rounding can explain."""
    if found.keys() != stored.keys() or len(found["losses"]) != len(stored["losses"]):
        return False
    losses = zip(found["losses"], stored["losses"], strict=True)
    if any(abs(a - b) > LOSS * max(1.0, abs(b)) for a, b in losses):
        return False
    rows = [
        pair
        for key in ("accuracy_matrix", "averaged_accuracy_matrix")
        for pair in zip(found.get(key, ()), stored.get(key, ()), strict=True)
    ]
    rows.append((found["baseline"], stored["baseline"]))
    for a, b in rows:
        for x, y in zip(a, b, strict=True):
            if (x is None) != (y is None) or (x is not None and abs(x - y) > ACCURACY):
                return False
    return True


def test_every_case_is_recorded():
    assert list(STORED["cases"]) == list(CASES), "run `make golden` and commit what it records"


@pytest.mark.parametrize("name", CASES)
def test_a_method_computes_what_it_did(name):
    if name not in STORED["cases"]:
        pytest.skip("not recorded")
    found, stored = record.measure(CASES[name]), STORED["cases"][name]
    if STORED["environment"] == record.environment():
        assert json.dumps(found) == json.dumps(stored)
    else:
        assert near(found, stored), (found, stored)


@pytest.mark.parametrize(
    ("name", "purpose"),
    [
        ("single, task", "weights"),
        ("single, domain", "order"),
        ("ours, task", "memory"),
        ("ours, class", "buffers"),
        ("tinyer, domain", "memory"),
        ("lwf, class", "order"),
        ("ours, shifted images, herding", "method"),
    ],
)
def test_the_tolerance_shows_a_changed_draw(name, purpose, monkeypatch):
    derive = seeds.derive

    def changed(seed, what):
        return derive(seed + (what == purpose), what)

    monkeypatch.setattr(seeds, "derive", changed)
    assert not near(record.measure(CASES[name]), STORED["cases"][name])


def test_the_tolerance_shows_another_order_of_parameters(monkeypatch):
    plain = Network.__init__

    def head_first(self, trunk, head):
        plain(self, trunk, head)
        names = list(self._modules)
        self._modules = {n: self._modules[n] for n in [names[-1], *names[:-1]]}

    monkeypatch.setattr(Network, "__init__", head_first)
    name = "ours, task"
    assert not near(record.measure(CASES[name]), STORED["cases"][name])
