"""Moments of two processes (gloo) against those of one."""

import pytest
import torch
import torch.multiprocessing as mp
from preserver_processes import JOBS, WORLD, alone, work
from torch import distributed as dist

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch has no gloo here"
)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    mp.spawn(work, (str(folder),), WORLD)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]


@pytest.mark.parametrize("job", [job.__name__ for job in JOBS])
def test_all_processes_make_the_same_update(answers, job):
    for a, b in zip(answers[0][job], answers[1][job], strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("job", ["replicated", "plain"])
def test_two_processes_equal_one(answers, job):
    for a, expected in zip(answers[0][job], alone(), strict=True):
        torch.testing.assert_close(a, expected, rtol=1e-5, atol=1e-6)


def test_sharded_layers_are_refused(answers):
    # The job makes its checks inside of the processes, and fails the fixture if one of them does.
    assert all("sharded" in answer for answer in answers)
