"""Two processes on the CPU (gloo) against one."""

import pytest
import torch
import torch.multiprocessing as mp
from torch import distributed as dist
from torch_processes import AGEM, EQUAL, WORLD, alone, work

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch has no gloo here"
)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    mp.spawn(work, (str(folder),), WORLD)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]


@pytest.mark.parametrize("job", [job.__name__ for job in EQUAL])
def test_two_processes_equal_one(answers, job):
    if job not in answers[0]:
        pytest.skip("this torch does not run FSDP2 (fully_shard) on the CPU")
    for a, b, expected in zip(answers[0][job], answers[1][job], alone(), strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, expected, rtol=1e-4, atol=1e-6)


def test_a_sum_of_averaged_gradients_equals_one_process(answers):
    for a, b, expected in zip(
        *(each["averaged_agem"] for each in answers), alone(AGEM), strict=True
    ):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("job", ["overflowed", "half_overflow"])
def test_an_overflow_on_one_rank_is_an_overflow_on_all(answers, job):
    for answer in answers:
        assert torch.isnan(answer[job][0]).all()


@pytest.mark.parametrize("job", ["drifting", "blocks_only", "replicated_dtensors"])
def test_what_would_go_wrong_is_refused_or_warned_of(answers, job):
    for answer in answers:  # the processes have checked it themselves
        assert answer[job] == []
