"""A memory inside the workers of a data loader."""

import pytest
import torch

from gradproj.adapters.torch import EpisodicMemory


class Replay(torch.utils.data.Dataset):
    """Draws from a memory inside the workers of a data loader."""

    def __init__(self, memory):
        self.memory = memory

    def __len__(self):
        return 8

    def __getitem__(self, _):
        (x,) = self.memory.sample(0, 4)
        return x


@pytest.mark.filterwarnings("ignore:This process")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # where JAX has been imported
def test_workers_of_a_data_loader_draw_different_samples():
    memory = EpisodicMemory(1000, seed=3)
    memory.add(0, torch.arange(1000))
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        loader = torch.utils.data.DataLoader(Replay(memory), batch_size=1, num_workers=2)
        draws.append([tuple(x[0].tolist()) for x in loader])
    assert len(set(draws[0])) == 8
    assert draws[0] == draws[1]
    assert not set(draws[0]) & set(draws[2])
    torch.manual_seed(1)
    assert memory.sample(0, 4)[0].tolist() == first_draw(3)


def first_draw(seed):
    """The first draw of a memory that no worker has touched."""
    memory = EpisodicMemory(1000, seed=seed)
    memory.add(0, torch.arange(1000))
    return memory.sample(0, 4)[0].tolist()
