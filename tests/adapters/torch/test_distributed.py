"""Two processes on the CPU (gloo) against one."""

import pytest
import torch
import torch.multiprocessing as mp
from torch import distributed as dist
from torch_processes import WORLD, alone, work

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch has no gloo here"
)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    mp.spawn(work, (str(folder),), WORLD)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]


@pytest.mark.parametrize(
    "job", ["averaged", "replicated", "bucket_views", "plain_shards", "fully_sharded"]
)
def test_two_processes_equal_one(answers, job):
    for a, b, expected in zip(answers[0][job], answers[1][job], alone(), strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, expected, rtol=1e-4, atol=1e-6)


def test_an_overflow_on_one_rank_is_an_overflow_on_all(answers):
    for answer in answers:
        assert torch.isnan(answer["overflowed"][0]).all()
