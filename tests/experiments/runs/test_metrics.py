"""Metrics against values computed by hand."""

import numpy as np
import pytest

from gradproj.experiments.runs import metrics

R = [[0.9, 0.2, 0.1], [0.7, 0.8, 0.3], [0.5, 0.9, 0.6]]
B = [0.1, 0.15, 0.05]


def test_average_accuracy():
    assert metrics.average_accuracy(R) == pytest.approx((0.5 + 0.9 + 0.6) / 3)


def test_backward_transfer_with_both_divisors():
    total = (0.5 - 0.9) + (0.9 - 0.8)
    assert metrics.backward_transfer(R, "pairs") == pytest.approx(total / 2)
    assert metrics.backward_transfer(R, "tasks") == pytest.approx(total / 3)


def test_forward_transfer_is_measured_from_the_untrained_network():
    total = (0.2 - 0.15) + (0.3 - 0.05)
    assert metrics.forward_transfer(R, B, "pairs") == pytest.approx(total / 2)
    assert metrics.forward_transfer(R, B, "tasks") == pytest.approx(total / 3)


def test_forgetting_is_from_the_best_before_the_last_task():
    assert metrics.forgetting(R) == pytest.approx(((0.9 - 0.5) + (0.8 - 0.9)) / 2)
    late_best = [[0.5, 0.1, 0.1], [0.8, 0.6, 0.1], [0.4, 0.6, 0.7]]
    assert metrics.forgetting(late_best) == pytest.approx((0.4 + 0.0) / 2)


def test_learning_accuracy():
    assert metrics.learning_accuracy(R) == pytest.approx((0.9 + 0.8 + 0.6) / 3)


def test_average_incremental_accuracy():
    steps = [0.9, (0.7 + 0.8) / 2, (0.5 + 0.9 + 0.6) / 3]
    assert metrics.average_incremental_accuracy(R) == pytest.approx(sum(steps) / 3)
    assert metrics.average_incremental_accuracy(R, first=False) == pytest.approx(sum(steps[1:]) / 2)


def test_average_incremental_accuracy_weights_tasks_by_their_test_images():
    steps = [0.9, (2 * 0.7 + 0.8) / 3, (2 * 0.5 + 0.9 + 0.6) / 4]
    found = metrics.average_incremental_accuracy(R, sizes=[200, 100, 100])
    assert found == pytest.approx(sum(steps) / 3)


def test_one_task():
    assert metrics.average_accuracy([[0.4]]) == pytest.approx(0.4)
    assert metrics.backward_transfer([[0.4]], "pairs") == 0.0
    assert metrics.backward_transfer([[0.4]], "tasks") == 0.0
    assert metrics.forward_transfer([[0.4]], [0.1]) == 0.0
    assert metrics.forgetting([[0.4]]) == 0.0
    with pytest.raises(ValueError, match="first=False leaves no step"):
        metrics.average_incremental_accuracy([[0.4]], first=False)


def test_the_input_is_left_alone():
    matrix = np.array(R)
    metrics.forward_transfer(matrix, np.array(B))
    assert matrix.tolist() == R


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.average_accuracy([[0.1, 0.2]]), r"R has shape \(1, 2\)"),
        (lambda: metrics.average_accuracy(np.zeros((0, 0))), "R has shape"),
        (lambda: metrics.average_accuracy([[57.4]]), "divide percentages by 100"),
        (lambda: metrics.average_accuracy([[float("nan")]]), "R must hold accuracies"),
        (lambda: metrics.backward_transfer(R, "T"), "divisor='T' is not known"),
        (lambda: metrics.forward_transfer(R, [0.1]), r"b has shape \(1,\)"),
        (lambda: metrics.average_incremental_accuracy(R, sizes=[1, 0, 1]), "sizes must be 3"),
    ],
)
def test_wrong_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
