"""A benchmark of your own: is a digit odd? Asked of 0 and 1, then of 2 and 3, and so on.

In this folder:

    gradproj run --benchmark own_benchmark:parity --method ours --seeds 0 1 2
    gradproj run --benchmark own_benchmark:parity --method ours --set stream.samples=100

The function is called with `seed` and with what `--set stream.…` gives it.
"""

from gradproj.experiments import Dataset, split
from gradproj.experiments.data import load


def parity(tasks=5, samples=None, seed=0):
    digits = load("digits")
    # Your own data come in here: images as bytes of shape (n, C, H, W), labels as whole numbers.
    mine = Dataset(
        name="parity",
        train_x=digits.train_x,
        train_y=digits.train_y,
        test_x=digits.test_x,
        test_y=digits.test_y,
        classes=10,
        scale=16.0,  # the value of a full-bright pixel
    )
    # "domain": the tasks share their outputs, here one for even digits and one for odd.
    return split(mine, tasks=tasks, samples=samples, seed=seed, scenario="domain")
