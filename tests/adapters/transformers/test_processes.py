"""A Trainer in two processes on the CPU (gloo) against one process."""

import socket

import pytest
import torch
import torch.multiprocessing as mp
from support.libraries import need
from torch import distributed as dist

need("transformers")

from trainer_processes import JOBS, WORLD, work  # noqa: E402

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


@pytest.mark.parametrize("job", JOBS)
def test_two_processes_equal_one(answers, job, tmp_path):
    expected = JOBS[job](tmp_path, 1)
    assert torch.equal(answers[0][job], answers[1][job])
    torch.testing.assert_close(answers[0][job], expected, rtol=1e-4, atol=1e-5)
