"""Every distillation loss against numbers computed by hand, and on random logits by loops."""

import math

import numpy as np
import pytest
import torch

from gradproj.experiments.methods.class_incremental.distillation import (
    distil,
    distil_slices,
    ensemble_target,
    feature_distance,
    margin_ranking,
    soft_cross_entropy,
    topology_loss,
    unsureness,
)
from gradproj.experiments.methods.class_incremental.finetuning import class_weights

LOG2, LOG3 = math.log(2), math.log(3)


def softmax(row, temperature=1.0):
    powers = [math.exp(v / temperature) for v in row]
    return [p / sum(powers) for p in powers]


def divergence(teacher, student, temperature):
    """Mean over rows of Σ p log(p / q), by loops."""
    total = 0.0
    for a, b in zip(teacher.tolist(), student.tolist(), strict=True):
        p, q = softmax(a, temperature), softmax(b, temperature)
        total += sum(x * math.log(x / y) for x, y in zip(p, q, strict=True))
    return total / len(teacher)


@pytest.fixture
def logits():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 3, 6, generator=generator, dtype=torch.float64).unbind(0)


def test_distillation_by_hand():
    # At T = 2 the teacher says (2/3, 1/3) and the student (1/2, 1/2).
    teacher, student = torch.tensor([[2 * LOG2, 0.0]]), torch.zeros(1, 2)
    wanted = 2 / 3 * math.log(4 / 3) + 1 / 3 * math.log(2 / 3)
    assert float(distil(teacher, student, squared=False)) == pytest.approx(wanted)
    assert float(distil(teacher, student)) == pytest.approx(4 * wanted)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_distillation_by_loops(logits, temperature):
    wanted = temperature**2 * divergence(*logits, temperature)
    assert float(distil(*logits, temperature)) == pytest.approx(wanted)


def test_distillation_has_the_gradient_of_the_soft_cross_entropy(logits):
    teacher, student = logits[0], logits[1].requires_grad_()
    (one,) = torch.autograd.grad(distil(teacher, student, squared=False), student)
    entropy = soft_cross_entropy((teacher / 2).softmax(1), student / 2) / len(student)
    (two,) = torch.autograd.grad(entropy, student)
    torch.testing.assert_close(one, two)


def test_slices_are_distilled_apart_and_weighted_by_their_share(logits):
    teacher, student = logits
    slices = [slice(0, 2), slice(2, 5)]
    parts = [4 * divergence(teacher[:, s], student[:, s], 2.0) for s in slices]
    found = float(distil_slices(teacher, student, slices, classes=6))
    assert found == pytest.approx(2 / 6 * parts[0] + 3 / 6 * parts[1])
    # A shift of one slice alone is seen by joint distillation, not by this one.
    shifted = student + 3.0 * (torch.arange(6) >= 2)
    assert float(distil_slices(teacher, shifted, slices, classes=6)) == pytest.approx(found)
    assert float(distil(teacher, shifted)) > float(distil(teacher, student)) + 0.1


def test_soft_cross_entropy_by_hand():
    target = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    logits = torch.tensor([[0.0, LOG3], [0.0, 0.0]])
    wanted = -0.25 * math.log(1 / 4) - 0.75 * math.log(3 / 4) + LOG2
    assert float(soft_cross_entropy(target, logits)) == pytest.approx(wanted)


def test_unsureness_by_hand():
    found = float(unsureness(torch.tensor([[0.0, LOG3], [0.0, 0.0]])))
    first = -(math.log(1 / 4) + math.log(3 / 4)) / 2
    assert found == pytest.approx((first + LOG2) / 2)


def test_ensemble_target_by_hand():
    # l = 2, r = 3: the peak stays, the other old class is halved, the new one gets (1 − 0.6) / 2.
    found = ensemble_target(torch.tensor([[0.4, 0.6]]), torch.ones(1, 1))
    torch.testing.assert_close(found, torch.tensor([[0.2, 0.6, 0.2]]))


@pytest.mark.parametrize(("old", "new"), [(1, 1), (1, 5), (2, 2), (10, 10), (90, 10)])
def test_ensemble_target_is_a_distribution(old, new):
    generator = torch.Generator().manual_seed(old)
    p = (3 * torch.randn(20, old, generator=generator, dtype=torch.float64)).softmax(1)
    q = torch.randn(20, new, generator=generator, dtype=torch.float64).softmax(1)
    target = ensemble_target(p, q)
    torch.testing.assert_close(target.sum(1), torch.ones(20, dtype=torch.float64))
    assert (target >= 0).all()
    torch.testing.assert_close(target[:, :old].max(1).values, p.max(1).values)


def test_feature_distance_looks_at_directions_alone():
    teacher = torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    student = torch.tensor([[5.0, 0.0], [1.0, 1.0]])
    found = float(feature_distance(teacher, student))
    assert found == pytest.approx((0 + 1 - 1 / math.sqrt(2)) / 2)


def test_margin_ranking_by_hand():
    cosines = torch.tensor(
        [
            [0.9, 0.0, 0.8, 0.1, 0.7],  # class 0, old: 0.4 and 0.3 over the margin
            [0.0, 0.9, 0.1, 0.2, 0.3],  # class 1, old: 0 and 0
            [0.9, 0.9, 0.0, 0.0, 0.0],  # class 2 is new: it does not count
        ]
    )
    labels = torch.tensor([0, 1, 2])
    found = float(margin_ranking(cosines, labels, old=2, hardest=2, margin=0.5))
    assert found == pytest.approx((0.4 + 0.3 + 0 + 0) / 4)
    assert float(margin_ranking(cosines, labels, old=2, hardest=9)) == pytest.approx(0.7 / 6)


def test_margin_ranking_without_old_samples_is_zero_and_has_a_gradient():
    cosines = torch.rand(2, 4, requires_grad=True)
    loss = margin_ranking(cosines, torch.tensor([2, 3]), old=2)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert not cosines.grad.any()


def test_topology_loss_is_minus_the_correlation_of_edges():
    rng = np.random.default_rng(0)
    before, now = rng.standard_normal((2, 5, 3))
    edges = []
    for points in (before, now):
        unit = points / np.linalg.norm(points, axis=1, keepdims=True)
        edges.append([unit[i] @ unit[j] for i in range(5) for j in range(i + 1, 5)])
    wanted = -np.corrcoef(*edges)[0, 1]
    found = float(topology_loss(torch.from_numpy(before), torch.from_numpy(now)))
    assert found == pytest.approx(wanted)


def test_topology_does_not_change_under_rotations():
    rng = np.random.default_rng(1)
    points = rng.standard_normal((6, 4))
    turned = 3 * points @ np.linalg.qr(rng.standard_normal((4, 4)))[0]
    found = float(topology_loss(torch.from_numpy(points), torch.from_numpy(turned)))
    assert found == pytest.approx(-1.0)


def test_class_weights_make_all_classes_count_the_same():
    labels = torch.tensor([0] * 6 + [1] * 3 + [2])
    weights = class_weights(labels, 3)
    assert weights.tolist() == pytest.approx([10 / 18, 10 / 9, 10 / 3])
    sums = [float(weights[labels[labels == c]].sum()) for c in range(3)]
    assert sums == pytest.approx([10 / 3] * 3)
