"""Makes the helpers in this folder importable; every test starts from one seed and one thread."""

import sys
from pathlib import Path

import pytest
import torch

from gradproj.adapters.torch._engines import pair_cost

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("factored_reference")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def always(monkeypatch):
    """Factor every supported layer, however small."""
    monkeypatch.setattr(pair_cost, "worthwhile", lambda *_, **__: True)
