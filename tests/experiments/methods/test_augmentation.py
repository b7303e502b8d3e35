"""Random augmentation: the forms and ranges that were published."""

from typing import get_args, get_type_hints

import pytest
import torch
from support.incremental import incremental

from gradproj.experiments.methods.augmentation import AUGMENTATIONS, color_jitter, one_of_twelve
from gradproj.experiments.methods.config import RunConfig


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_configuration_names_every_augmentation():
    names = get_args(get_type_hints(RunConfig)["augment"])
    assert names == ("none", *AUGMENTATIONS)


@pytest.mark.parametrize("name", list(AUGMENTATIONS))
def test_a_learner_augments_as_its_configuration_says(name):
    learner, x = incremental("lwf", augment=name), torch.rand(64, 1, 2, 3)
    changed = learner.augmented(x)
    assert changed.shape == x.shape
    assert not torch.equal(changed, x)
    assert ((changed >= 0) & (changed <= 1)).all()


def test_jitter_scales_brightness_and_contrast_within_the_published_ranges():
    gray = torch.full((400, 3, 2, 2), 0.5)
    # A flat image has no contrast: what is left is the brightness.
    light = color_jitter(gray, generator()).mean((1, 2, 3)) / 0.5
    assert light.min() == pytest.approx(1 - 63 / 255, abs=0.01)
    assert light.max() == pytest.approx(1 + 63 / 255, abs=0.01)
    x = gray.clone()
    x[:, :, 0], x[:, :, 1] = 0.45, 0.55
    spread = color_jitter(x, generator(), brightness=0.0)
    ratio = (spread[:, 0, 1, 0] - spread[:, 0, 0, 0]) / 0.1
    assert ratio.min() == pytest.approx(0.2, abs=0.02)
    assert ratio.max() == pytest.approx(1.8, abs=0.02)


def test_twelvefold_draws_every_form_equally_often():
    base = torch.full((1, 20, 20), 0.4)
    base[:, :, 10:] = 0.6
    drawn = one_of_twelve(base.expand(4000, -1, -1, -1), generator())
    # Pixels that no crop moves across the middle or out of the image.
    left, right = drawn[:, 0, 10, 5], drawn[:, 0, 10, 14]
    whole = torch.tensor([not bool((image == 0).any()) for image in drawn])
    step = (right - left).abs()
    same = (left.minimum(right) - 0.4).abs() < 1e-6
    kinds = {
        "as it is": same & (step - 0.2).abs().lt(1e-6),
        "brightness": ~same & (step - 0.2).abs().lt(1e-5),
        "contrast": ~(step - 0.2).abs().lt(1e-5),
    }
    for kind in kinds.values():
        assert float(kind.float().mean()) == pytest.approx(1 / 3, abs=0.03)
    assert float((left > right).float().mean()) == pytest.approx(0.5, abs=0.03)
    # A crop by 0 pixels in both directions is whole as well: 1 of 81.
    assert float(whole.float().mean()) == pytest.approx(0.5 + 0.5 / 81, abs=0.03)


def test_noise_of_eeil_counts_epochs_of_the_expanded_set():
    learner = incremental("eeil", augment="twelvefold", options={"noise": 0.3})
    task = learner.stream.tasks[0]
    learner.begin_epoch(task, learner.phases(task)[0], 25)
    assert learner.epoch == 2
