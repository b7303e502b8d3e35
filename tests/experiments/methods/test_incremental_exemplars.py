"""Which exemplars are kept, how many of each class, and how they are split into parts."""

import pytest
import torch
from support.incremental import enter, incremental, learn

from gradproj.experiments.methods.memory.exemplars import Exemplars
from gradproj.experiments.methods.memory.sub_buffers import SubBuffers


def points(values, label=0):
    return torch.tensor(values), torch.full((len(values),), label)


def test_herding_order_on_a_toy_set():
    # Unit vectors at 0°, 10°, 20°, 90°: their mean points to 28.7°.
    degrees = torch.tensor([0.0, 10.0, 20.0, 90.0]).deg2rad()
    x = torch.stack([degrees.cos(), degrees.sin()], 1)
    chosen, mean = [], x.mean(0)
    while len(chosen) < 4:  # by trying each
        left = [i for i in range(4) if i not in chosen]
        chosen.append(min(left, key=lambda i: float((x[[*chosen, i]].mean(0) - mean).norm())))
    assert chosen[0] == 2
    store = Exemplars(total=4)
    store.choose(x * torch.tensor([[1.0], [5.0], [2.0], [3.0]]), torch.zeros(4, dtype=int), 4)
    found = torch.nn.functional.normalize(store.images[0], dim=1)
    torch.testing.assert_close(found, x[chosen])


def test_herding_is_the_published_rule_on_unit_features():
    """Pick argmax ⟨w, φ⟩, then w ← w + μ − φ."""
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    unit = torch.nn.functional.normalize(x, dim=1)
    w, chosen = unit.mean(0), []
    for _ in range(10):
        scores = unit @ w
        scores[chosen] = -torch.inf
        chosen.append(int(scores.argmax()))
        w = w + unit.mean(0) - unit[chosen[-1]]
    store = Exemplars(total=10)
    store.choose(x, torch.zeros(30, dtype=int), 10)
    assert torch.equal(store.images[0], x[chosen])


def test_herding_asks_for_features():
    store = Exemplars(total=1)
    x, y = points([[1.0, 0.0], [0.0, 1.0], [0.1, 0.0]])
    store.choose(x, y, 1, features=lambda x: torch.cat([x, torch.ones(len(x), 1)], 1))
    assert store.images[0].tolist() != x[:1].tolist()


def test_a_total_is_shared_equally_and_never_passed():
    store = Exemplars(total=20, policy="random")
    for step in range(4):
        x = torch.rand(60, 2)
        store.admit(x, torch.arange(60) % 3 + 3 * step, classes=3 * step + 3)
        counts = {len(images) for images in store.images.values()}
        assert counts == {20 // (3 * step + 3)}
        assert len(store) <= 20


def test_a_share_of_each_class_does_not_shrink():
    store = Exemplars(total=4, per_class=3, policy="random")
    for step in range(3):
        store.admit(torch.rand(10, 2), torch.full((10,), step), classes=step + 1)
    assert [len(images) for images in store.images.values()] == [3, 3, 3]


def test_a_smaller_share_is_a_prefix():
    store = Exemplars(total=6)
    store.choose(torch.rand(9, 3), torch.zeros(9, dtype=int), 6)
    before = store.images[0]
    store.reduce(2)
    assert torch.equal(store.images[0], before[:2])


def test_a_class_with_fewer_images_keeps_them_all():
    store = Exemplars(total=50)
    store.admit(torch.rand(5, 2), torch.tensor([0, 0, 0, 1, 1]), classes=2)
    assert [len(images) for images in store.images.values()] == [3, 2]


def test_kmeans_takes_one_image_a_cluster_the_largest_first():
    clusters = [[1.0, 0.0]] * 2 + [[0.0, 1.0]] * 5 + [[-1.0, 0.0]] * 3
    noise = 0.01 * torch.randn(10, 2, generator=torch.Generator().manual_seed(0))
    store = Exemplars(total=3, policy="kmeans")
    store.choose(torch.tensor(clusters) + noise, torch.zeros(10, dtype=int), 3)
    assert store.images[0].round().tolist() == [[0.0, 1.0], [-1.0, 0.0], [1.0, 0.0]]


def test_kmeans_of_equal_images_keeps_one():
    store = Exemplars(total=3, policy="kmeans")
    store.choose(torch.ones(5, 2), torch.zeros(5, dtype=int), 3)
    assert len(store) == 1


@pytest.mark.parametrize("policy", ["random", "kmeans"])
def test_seeds_decide_random_choices(policy):
    x = torch.rand(40, 3, generator=torch.Generator().manual_seed(5))
    kept = []
    for seed in (1, 1, 2):
        store = Exemplars(total=7, policy=policy, seed=seed)
        store.choose(x, torch.zeros(40, dtype=int), 7)
        kept.append(store.images[0])
    assert torch.equal(kept[0], kept[1])
    assert not torch.equal(kept[0], kept[2])


def test_state_goes_on_bit_for_bit():
    one, two = Exemplars(total=4, policy="random"), Exemplars(total=4, policy="random", seed=9)
    one.admit(torch.rand(9, 2), torch.zeros(9, dtype=int), 1)
    two.load_state_dict(one.state_dict())
    x = torch.rand(9, 2)
    for store in (one, two):
        store.admit(x, torch.ones(9, dtype=int), 2)
    for a, b in zip(one.all(), two.all(), strict=True):
        assert torch.equal(a, b)


def test_errors_name_the_setting():
    with pytest.raises(ValueError, match=r"memory.policy='reservoir' .* use 'herding', 'random'"):
        Exemplars(policy="reservoir")
    with pytest.raises(ValueError, match=r"memory.total=3 leaves no exemplar .* use at least 4"):
        Exemplars(total=3).share(4)


def filled(count=23, parts=5):
    buffers = SubBuffers(Exemplars(total=count, policy="last"), parts)
    buffers.admit(torch.arange(float(count)), torch.zeros(count, dtype=int), classes=1)
    return buffers


def test_parts_are_a_partition_of_nearly_one_size():
    buffers = filled()
    parts = [buffers.all(part)[0] for part in range(len(buffers))]
    assert [len(part) for part in parts] == [5, 5, 5, 4, 4]
    assert sorted(torch.cat(parts).tolist()) == list(range(23))


def test_redrawing_changes_the_parts():
    buffers = filled()
    before = buffers.all(0)[0]
    buffers.redraw()
    assert sorted(buffers.all(0)[0].tolist()) != sorted(before.tolist())


def test_samples_come_from_their_part_without_replacement():
    buffers = filled()
    part = set(buffers.all(3)[0].tolist())
    for _ in range(20):
        drawn = buffers.sample(3, 3)[0].tolist()
        assert len(set(drawn)) == 3
        assert set(drawn) <= part
    assert sorted(buffers.sample(3, 99)[0].tolist()) == sorted(part)


def test_there_are_no_more_parts_than_samples():
    assert len(filled(count=3)) == 3
    assert len(SubBuffers(Exemplars())) == 0


def test_parts_are_drawn_anew_at_every_step():
    memory = {"per_task": 6, "batch": 0, "buffers": 3}
    learner = incremental("ours", tasks=2, memory=memory)
    learn(learner, 0)
    task, x, y = enter(learner, 1)
    seen = []
    for epoch in range(2):
        learner.begin_epoch(task, learner.phases(task)[0], epoch)
        for _ in range(3):
            learner.observe(task, x, y)
            seen.append(tuple(learner.memory.order.tolist()))
    assert len(set(seen)) == 6


@pytest.mark.parametrize("method", ["ours", "gem", "agem", "sgem", "replay"])
def test_projection_methods_share_one_balanced_buffer(method):
    learner = incremental(method, tasks=4, memory={"per_task": 3, "batch": 0, "buffers": 5})
    for task in range(3):
        learn(learner, task)
        counts = torch.bincount(learner.memory.exemplars.all()[1]).tolist()
        assert counts == [min(6, 12 // (task + 1))] * (task + 1)
    enter(learner, 3)
    batches = list(learner.old_batches())
    assert len(batches) == 5
    assert sum(len(y) for _, y, _ in batches) == 12
    assert all(mask.tolist() == [0.0] * 4 for *_, mask in batches)


@pytest.mark.parametrize(("method", "size"), [("agem", 7), ("sgem", 4)])
def test_original_forms_draw_from_the_buffer_or_from_one_part(method, size):
    options = {"form": "original"} | ({"reference": 7} if method == "agem" else {})
    memory = {"per_task": 4, "batch": 0, "buffers": 2}
    learner = incremental(method, options=options, memory=memory)
    learn(learner, 0)
    enter(learner, 1)
    ((x, y, _),) = learner.old_batches()
    assert len(x) == len(y) == size
    stored = {tuple(image.flatten().tolist()) for image in learner.memory.exemplars.all()[0]}
    drawn = {tuple(image.flatten().tolist()) for image in x}
    assert len(drawn) == size
    assert drawn <= stored
