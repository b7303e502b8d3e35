"""Continual learning on your own data: a NumPy array, a data frame, or a torch data set.

    python examples/own_data.py

Each is turned into a `Dataset`, split into tasks, and learned by a method that stores no samples.
"""

import numpy as np
import torch
from torch.utils.data import TensorDataset

from gradproj.experiments import make_dataset, run, split


def measurements(samples=400, features=12, classes=4, seed=0):
    """Vectors around one centre per class, with float labels as some files have them."""
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=samples)
    x = rng.normal(size=(classes, features))[y] + 0.5 * rng.normal(size=(samples, features))
    return x, y.astype(float)


def from_arrays():
    x, y = measurements()
    return make_dataset(x, y, name="arrays")


def from_frame():
    import pandas as pd

    x, y = measurements()
    frame = pd.DataFrame(x).add_prefix("feature").assign(kind=np.array(list("abcd"))[y.astype(int)])
    return make_dataset(frame, "kind", name="frame")


def from_torch():
    x, y = measurements(features=64)
    images = torch.from_numpy(x).float().view(-1, 1, 8, 8)
    return make_dataset(TensorDataset(images, torch.from_numpy(y).long()), name="images")


def main():
    for make in (from_arrays, from_frame, from_torch):
        try:
            data = make()
        except ModuleNotFoundError as error:
            print(f"{make.__name__} was left out: {error}")
            continue
        stream = split(data, tasks=2)
        result = run(benchmark=stream, method="preserve", epochs=5, progress=False)
        print(f"{data.name}: {len(data.train_x)} samples {data.shape}, {result}")
    return result


if __name__ == "__main__":
    main()
