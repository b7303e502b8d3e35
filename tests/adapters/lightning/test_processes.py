"""A Lightning Trainer in two processes on the CPU (gloo) against one process."""

import socket

import pytest
import torch
import torch.multiprocessing as mp
from support.libraries import need
from torch import distributed as dist

need("lightning")

from lightning_processes import JOBS, WORLD, work  # noqa: E402

pytestmark = [
    pytest.mark.skipif(
        not (dist.is_available() and dist.is_gloo_available()), reason="torch has no gloo here"
    ),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    mp.spawn(work, (str(folder), port), WORLD)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("job", JOBS)
def test_two_processes_equal_one(answers, job, views, tmp_path):
    expected = JOBS[job](tmp_path, 1)
    first, second = (answer[f"{job} {views}"] for answer in answers)
    assert torch.equal(first, second)
    torch.testing.assert_close(first, expected, rtol=1e-4, atol=1e-5)
