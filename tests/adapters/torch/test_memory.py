import numpy as np
import pytest
import torch
from torch import nn

from gradproj.adapters.torch import EpisodicMemory, _draws, herd

POLICIES = ("last", "random", "reservoir", "herding")


def fill(memory, count=100, step=7, task=0):
    x = torch.arange(count).float()[:, None]
    for part in torch.arange(count).split(step):
        memory.add(task, x[part], part % 3)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("count", [5, 12, 100])
def test_a_memory_never_holds_more_than_it_may_and_all_it_can(policy, count):
    memory = EpisodicMemory(12, policy)
    fill(memory, count)
    x, y = memory.all(0)
    assert len(memory) == len(x) == min(count, 12)
    values = x.flatten().long()
    assert len(values.unique()) == len(x)  # no sample twice
    assert torch.equal(values % 3, y)  # inputs and labels stay together


def test_last_is_a_ring():
    memory = EpisodicMemory(5, "last")
    fill(memory, 23, step=3)
    assert sorted(memory.all(0)[0].flatten().tolist()) == [18, 19, 20, 21, 22]
    memory.add(0, torch.arange(100.0, 120.0)[:, None], torch.zeros(20, dtype=torch.long))
    assert sorted(memory.all(0)[0].flatten().tolist()) == [115, 116, 117, 118, 119]


@pytest.mark.parametrize(("policy", "step"), [("reservoir", 7), ("random", 60)])
def test_choices_are_uniform(policy, step):
    runs, kept, count = 400, 10, 60
    hits = torch.zeros(count)
    for seed in range(runs):
        memory = EpisodicMemory(kept, policy, seed=seed)
        fill(memory, count, step)
        hits[memory.all(0)[0].flatten().long()] += 1
    share = kept / count
    sigma = (share * (1 - share) / runs) ** 0.5
    assert (hits / runs - share).abs().max() < 4.5 * sigma
    assert abs(float(hits[: count // 2].sum() / hits.sum()) - 0.5) < 0.03


def test_random_may_be_called_again():
    memory = EpisodicMemory(10, "random")
    fill(memory, 100, step=10)
    assert memory.all(0)[0].max() > 50  # the later ones are favoured


def test_herding_order_by_hand():
    # Mean 3. First 4 (distance 1), then 0 (mean 2, against 4.5 with 5), then 5.
    points = torch.tensor([[0.0], [4.0], [5.0]])
    assert herd(points).tolist() == [1, 0, 2]
    assert herd(points, 2).tolist() == [1, 0]
    assert herd(points, 9).tolist() == [1, 0, 2]


def test_herding_keeps_the_best_of_each_label_first():
    torch.manual_seed(1)
    x, y = torch.randn(40, 3) + 2, torch.arange(40) % 2
    memory = EpisodicMemory(6, "herding")
    memory.add(0, x, y)
    kept, labels = memory.all(0)
    unit = torch.nn.functional.normalize(x.double(), dim=1)
    for label in (0, 1):
        mine = torch.nonzero(y == label).flatten()
        assert torch.equal(kept[labels == label], x[mine[herd(unit[mine])[:3]]])
    best = kept[labels == 0]
    # New labels take their share; of the old ones the best stay, in order.
    memory.add(0, torch.randn(20, 3), torch.full((20,), 2))
    fewer, labels = memory.all(0)
    assert torch.bincount(labels).tolist() == [2, 2, 2]
    assert torch.equal(fewer[labels == 0], best[:2])


def test_herding_sees_the_features_it_is_given():
    x = torch.tensor([[0.0, 1.0], [1.0, 0.0], [9.0, 9.1]])
    memory = EpisodicMemory(1, "herding", features=lambda x: torch.cat([x[:, :1], x[:, :1] + 1], 1))
    memory.add(0, x, torch.zeros(3, dtype=torch.long))
    features = torch.nn.functional.normalize(torch.stack([x[:, 0], x[:, 0] + 1], 1).double(), dim=1)
    assert torch.equal(memory.all(0)[0][0], x[herd(features)[0]])


@pytest.mark.parametrize("shape", [(4, 8, 1, 1), (4,), (3, 8)], ids=str)
def test_herding_refuses_features_that_are_not_a_row_a_sample(shape):
    memory = EpisodicMemory(2, "herding", features=lambda _: torch.randn(shape))
    with pytest.raises(ValueError, match=r"features makes \(.*\) of 4 samples; let it return one"):
        memory.add(0, torch.randn(4, 3), torch.arange(4))


def test_herding_takes_samples_that_are_one_number():
    memory = EpisodicMemory(2, "herding")
    memory.add(0, torch.tensor([3.0, -4.0, 5.0]), torch.zeros(3, dtype=torch.long))
    assert len(memory) == 2


def test_batches_are_drawn_without_replacement_from_one_seed():
    memories = [EpisodicMemory(50, seed=s) for s in (3, 3, 4)]
    draws = []
    for memory in memories:
        fill(memory, 50)
        draws.append([memory.sample(0, 20)[0].flatten().tolist() for _ in range(3)])
    assert draws[0] == draws[1] != draws[2]
    assert draws[0][0] != draws[0][1]
    assert all(len(set(batch)) == 20 for batch in draws[0])
    assert len(memories[0].sample(0, 500)[0]) == 50


def test_a_batch_of_a_large_memory_is_drawn_in_time_that_does_not_depend_on_its_size(monkeypatch):
    memories = [EpisodicMemory(2**20, seed=3) for _ in range(2)]
    for memory in memories:
        memory.add(0, torch.arange(2**20))
    monkeypatch.setattr(torch, "randperm", None)  # it would take 10 ms
    one, two = ([memory.sample(0, 20)[0].tolist() for _ in range(3)] for memory in memories)
    assert one == two
    assert one[0] != one[1]


def test_draws_of_a_large_memory_are_uniform_and_without_replacement(monkeypatch):
    monkeypatch.setattr(_draws, "MANY", 0)
    generator = torch.Generator().manual_seed(0)
    pairs = torch.stack([_draws.draw(128, 2, generator) for _ in range(20_000)])
    assert (pairs[:, 0] != pairs[:, 1]).all()
    for drawn in pairs.T:
        counts = drawn.bincount(minlength=128)
        chi_squared = float(((counts - 156.25) ** 2 / 156.25).sum())
        assert len(counts) == 128
        assert chi_squared < 182  # exceeded once in a thousand times by uniform draws


def test_draws_of_a_memory_as_presets_have_stay_as_they_were():
    drawn = _draws.draw(10_240, 20, torch.Generator().manual_seed(0))
    assert drawn.equal(torch.randperm(10_240, generator=torch.Generator().manual_seed(0))[:20])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("shape", [(), (3,), (2, 4, 4)])
def test_any_shape_and_dtype(shape, dtype):
    memory = EpisodicMemory(4)
    memory.add("a", torch.ones(6, *shape).to(dtype), torch.zeros(6, 2), torch.arange(6))
    x, extra, y = memory.sample("a", 3)
    assert (x.dtype, x.shape[1:], extra.shape[1:], len(y)) == (dtype, torch.Size(shape), (2,), 3)


def test_one_task_or_all():
    memory = EpisodicMemory(4)
    fill(memory, 10, task=0)
    fill(memory, 3, task="late")
    assert memory.tasks == (0, "late")
    assert len(memory) == 7
    assert torch.equal(memory.all()[0], torch.cat([memory.all(0)[0], memory.all("late")[0]]))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_memory_that_was_saved_goes_on_as_if_nothing_had_happened(policy, tmp_path):
    whole, saved = EpisodicMemory(12, policy, seed=1), EpisodicMemory(12, policy, seed=1)
    for memory in (whole, saved):
        fill(memory, 40)
        fill(memory, 5, task=1)
        memory.sample(0, 3)
    torch.save(saved.state_dict(), tmp_path / "memory.pt")
    loaded = EpisodicMemory(12, policy, seed=99)
    loaded.load_state_dict(torch.load(tmp_path / "memory.pt", weights_only=True))
    for memory in (whole, loaded):
        fill(memory, 40)
        fill(memory, 30, task=1)
    assert whole.tasks == loaded.tasks
    for task in whole.tasks:
        for a, b in zip(whole.sample(task, 7), loaded.sample(task, 7), strict=True):
            assert torch.equal(a, b)


def test_what_is_stored_does_not_alias_what_was_offered():
    memory, x = EpisodicMemory(4), torch.zeros(2, 3)
    memory.add(0, x)
    x += 1
    assert memory.all(0)[0].sum() == 0


@pytest.mark.parametrize("n", [3, 4, 9])
def test_what_is_drawn_does_not_alias_what_is_stored(n):
    memory = EpisodicMemory(4)
    fill(memory, 4)
    kept = memory.all(0)[0].clone()
    memory.sample(0, n)[0].add_(100)  # as augmentation in place does
    assert torch.equal(memory.all(0)[0], kept)


def test_drawing_all_keeps_their_order_and_draws_no_number():
    memory = EpisodicMemory(4)
    fill(memory, 9)
    before = memory.generator.get_state()
    for drawn, stored in zip(memory.sample(0, 4), memory.all(0), strict=True):
        assert torch.equal(drawn, stored)
    assert torch.equal(memory.generator.get_state(), before)


def failing(_):
    raise RuntimeError("no features")


@pytest.mark.parametrize(
    ("policy", "tensors", "error"),
    [
        ("last", (torch.zeros(2, 3), [0, 1]), TypeError),
        ("last", (torch.zeros(2, 3), torch.zeros(3)), ValueError),
        ("last", (torch.zeros(2, 3), torch.tensor(1)), ValueError),
        ("herding", (torch.zeros(2, 3), torch.zeros(2, 3)), ValueError),
        ("herding", (torch.zeros(2, 3), torch.zeros(2)), ValueError),
        ("herding", (torch.zeros(2, 3), torch.zeros(2).long()), RuntimeError),  # in `features`
    ],
)
def test_a_memory_that_refuses_samples_is_as_it_was(policy, tensors, error):
    memory = EpisodicMemory(4, policy, features=failing)
    with pytest.raises(error):
        memory.add(0, *tensors)
    assert (memory.tasks, len(memory)) == ((), 0)
    memory.features = None
    memory.add(0, torch.ones(5, 7), torch.arange(5))  # its kinds, not those that were refused
    x, y = memory.all(0)
    assert (x.shape, y.dtype) == ((4, 7), torch.long)


@pytest.mark.parametrize("policy", POLICIES)
def test_no_samples_change_nothing(policy):
    memory = EpisodicMemory(4, policy)
    nothing = torch.zeros(0, 1), torch.zeros(0, dtype=torch.long)
    memory.add(0, *nothing)
    assert memory.tasks == ()
    fill(memory, 6)
    kept, before = memory.all(0)[0].clone(), memory.generator.get_state()
    memory.add(0, *nothing)
    assert torch.equal(memory.all(0)[0], kept)
    assert torch.equal(memory.generator.get_state(), before)


def test_later_samples_go_where_the_first_ones_are():
    memory = EpisodicMemory(4)
    memory.add(0, torch.zeros(2, device="meta"))
    memory.add(0, torch.zeros(2))
    assert memory.all(0)[0].device.type == "meta"
    assert len(memory) == 4


@pytest.mark.parametrize("policy", POLICIES)
def test_the_default_device_of_torch_does_not_matter(policy):
    x, y = torch.randn(9, 3), torch.arange(9) % 3
    with torch.device("meta"):
        memory = EpisodicMemory(4, policy)
        memory.add(0, x[:5], y[:5])
        memory.add(0, x[5:], y[5:])
        drawn, _ = memory.sample(0, 2)
    assert {t.device.type for t in (drawn, *memory.all(0))} == {"cpu"}


def test_tasks_of_different_kinds_are_read_one_by_one():
    memory = EpisodicMemory()
    memory.add(0, torch.zeros(2, 3))
    memory.add("b", torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"samples of tasks \[0, 'b'\] differ in shape or dtype"):
        memory.all()


def test_errors_say_what_is_wrong():
    for per_task in (0, 2.5):
        with pytest.raises(ValueError, match=f"per_task={per_task} is invalid: expected an int"):
            EpisodicMemory(per_task)
    with pytest.raises(ValueError, match="policy='first' is not known; use 'last', 'random'"):
        EpisodicMemory(policy="first")
    memory = EpisodicMemory()
    with pytest.raises(
        ValueError, match=r"tensors have shapes \[\(2,\), \(3,\)\]; pass one or mor"
    ):
        memory.add(0, torch.zeros(2), torch.zeros(3))
    with pytest.raises(ValueError, match="with the samples along axis 0"):
        memory.add(0)
    with pytest.raises(TypeError, match=r"tensors\[1\] is a list; pass tensors, for example"):
        memory.add(0, torch.zeros(2), [0, 1])
    memory.add(0, torch.zeros(2))
    for n in (0, 2.5):
        with pytest.raises(ValueError, match=f"n={n} is invalid: .*; draw at least one sample"):
            memory.sample(0, n)
    with pytest.raises(TypeError, match=r"task is a Tensor; name it by an int .* int\(task\)"):
        memory.add(torch.tensor(1), torch.zeros(2))
    with pytest.raises(ValueError, match="tensors of task 0 have changed from"):
        memory.add(0, torch.zeros(2, 2))
    with pytest.raises(KeyError, match="task 5 is not in the memory; it has"):
        memory.sample(5, 1)
    for labels in (torch.zeros(2, 2), torch.zeros(2), torch.zeros(2, dtype=torch.complex64)):
        with pytest.raises(ValueError, match=r"tensors\[-1\] has shape .*needs one integer label"):
            EpisodicMemory(policy="herding").add(0, labels)
    with pytest.raises(ValueError, match="state has policy='last' and the memory 'random'; build"):
        EpisodicMemory(policy="random").load_state_dict(memory.state_dict())


@pytest.mark.parametrize(
    "dtype", [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.bool]
)
@pytest.mark.parametrize("shape", [(2,), (2, 2)], ids=str)
@pytest.mark.parametrize("policy", ["last", "reservoir"])
def test_a_memory_takes_any_dtype(dtype, shape, policy):
    memory = EpisodicMemory(3, policy)
    for number in range(5):
        memory.add(0, torch.full(shape, number % 2).to(dtype))
    (x,) = memory.sample(0, 2)
    assert x.dtype == dtype
    assert x.shape == shape


def test_numbers_of_numpy_do_not_spoil_the_state(tmp_path):
    memory = EpisodicMemory(np.int64(4), seed=np.int64(7))
    assert memory.generator.initial_seed() == 7
    memory.add(np.int64(0), torch.ones(2, 1))
    torch.save(memory.state_dict(), tmp_path / "memory.pt")
    again = EpisodicMemory(4)
    again.load_state_dict(torch.load(tmp_path / "memory.pt", weights_only=True))
    assert again.tasks == (0,)


def test_samples_from_inference_can_be_trained_on():
    memory = EpisodicMemory(4)
    with torch.inference_mode():
        memory.add(0, torch.ones(2, 3))
    memory.add(0, torch.ones(1, 3))
    model = nn.Linear(3, 1)
    model(*memory.all(0)).sum().backward()
    assert model.weight.grad is not None


def test_a_state_that_cannot_be_read_changes_nothing():
    memory = EpisodicMemory(4)
    memory.add(0, torch.ones(2, 3))
    state = EpisodicMemory(4).state_dict()
    del state["generator"]
    with pytest.raises(KeyError):
        memory.load_state_dict(state)
    assert memory.tasks == (0,)
    assert len(memory) == 2
