"""Data sets from a user's arrays, frames and torch data sets."""

import numpy as np
import pytest
import torch

from gradproj.experiments.data import make_dataset
from gradproj.experiments.streams import permuted, rotated, split
from gradproj.experiments.streams.stream import Part

RNG = np.random.default_rng(0)
LABELS = np.arange(40) % 4
BYTES = RNG.integers(0, 256, (40, 3, 8, 8), dtype=np.uint8)
FLOATS = RNG.random((40, 12))


class Pairs(torch.utils.data.Dataset):
    """A torch Dataset that is not a TensorDataset."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


@pytest.mark.parametrize(
    ("x", "shape", "dtype", "scale"),
    [
        (BYTES, (3, 8, 8), torch.uint8, 255.0),
        (BYTES.transpose(0, 2, 3, 1), (3, 8, 8), torch.uint8, 255.0),
        (BYTES.astype(np.int64), (3, 8, 8), torch.uint8, 255.0),
        (BYTES[:, 0], (1, 8, 8), torch.uint8, 255.0),
        (BYTES / 255, (3, 8, 8), torch.float32, 1.0),
        ((BYTES / 255).transpose(0, 2, 3, 1), (3, 8, 8), torch.float32, 1.0),
        (BYTES[:, :, :, :5] > 99, (3, 8, 5), torch.float32, 1.0),
        (BYTES.repeat(3, axis=1), (9, 8, 8), torch.uint8, 255.0),
        (FLOATS, (1, 1, 12), torch.float32, 1.0),
        (FLOATS.tolist(), (1, 1, 12), torch.float32, 1.0),
        (BYTES.reshape(40, -1), (1, 1, 192), torch.uint8, 255.0),
        (BYTES.reshape(40, -1).astype(int) // 9 - 5, (1, 1, 192), torch.float32, 1.0),
        (torch.from_numpy(FLOATS).requires_grad_(), (1, 1, 12), torch.float32, 1.0),
        (torch.from_numpy(BYTES).to(memory_format=torch.channels_last), (3, 8, 8), torch.uint8,
         255.0),
    ],
)  # fmt: skip
def test_images_and_vectors_of_any_type(x, shape, dtype, scale):
    data = make_dataset(x, LABELS, name="mine")
    assert (data.shape, data.train_x.dtype, data.scale) == (shape, dtype, scale)
    assert (data.name, data.classes, len(data.train_x), len(data.test_x)) == ("mine", 4, 32, 8)


def test_channels_last_and_channels_first_hold_the_same_pixels():
    first, last = (make_dataset(x, LABELS) for x in (BYTES, BYTES.transpose(0, 2, 3, 1)))
    assert torch.equal(first.train_x, last.train_x)
    forced = make_dataset(BYTES, LABELS, layout="NHWC")
    assert forced.shape == (8, 3, 8)


@pytest.mark.parametrize(
    "labels",
    [
        LABELS,
        LABELS.astype(np.float32),
        LABELS[:, None] * 10 - 5,
        torch.from_numpy(LABELS),
        LABELS.astype(np.uint8),
        np.array(["ant", "bee", "cow", "dog"])[LABELS],
        list(np.array(["ant", "bee", "cow", "dog"], dtype=object)[LABELS]),
    ],
)
def test_labels_of_any_type_are_numbered_in_ascending_order(labels):
    data = make_dataset(FLOATS, labels, test=(FLOATS, labels))
    assert data.train_y.tolist() == data.test_y.tolist() == LABELS.tolist()


def test_the_test_samples_are_a_share_of_every_class_and_never_change():
    one, two = (make_dataset(FLOATS, LABELS, test_share=0.3) for _ in range(2))
    assert one.test_y.bincount().tolist() == [3, 3, 3, 3]
    assert torch.equal(one.test_x, two.test_x)
    other = make_dataset(FLOATS, LABELS, test_share=0.3, seed=1)
    assert not torch.equal(one.test_x, other.test_x)
    rows = torch.cat([one.train_x, one.test_x]).flatten(1)
    assert len(rows.unique(dim=0)) == 40


@pytest.mark.parametrize("dataset", [Pairs, torch.utils.data.TensorDataset])
def test_a_torch_data_set_carries_its_labels(dataset):
    parts = torch.from_numpy(FLOATS).float(), torch.from_numpy(LABELS)
    data = make_dataset(dataset(*parts), test=dataset(*parts))
    assert torch.equal(data.train_x.flatten(1), parts[0])
    assert torch.equal(data.test_y, parts[1])


def test_a_torch_data_set_of_pictures():
    image = pytest.importorskip("PIL.Image")
    pictures = [image.fromarray(x.transpose(1, 2, 0)) for x in BYTES]
    data = make_dataset(Pairs(pictures, LABELS.tolist()), test=(BYTES, LABELS))
    assert torch.equal(data.train_x, data.test_x)


def test_a_data_frame_with_a_column_of_labels():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(FLOATS, columns=[f"f{i}" for i in range(12)])
    whole = make_dataset(frame, pandas.Series(LABELS))
    frame["kind"] = pandas.Categorical(np.array(["a", "b", "c", "d"])[LABELS])
    named = make_dataset(frame, "kind")
    assert torch.equal(whole.train_x, named.train_x)
    assert torch.equal(whole.train_y, named.train_y)
    both = make_dataset(frame, "kind", test=frame[:8])
    assert (both.shape, len(both.train_x), len(both.test_x)) == ((1, 1, 12), 40, 8)
    with pytest.raises(ValueError, match="x has columns that are not numbers: kind; encode"):
        make_dataset(frame, LABELS)
    with pytest.raises(ValueError, match="y='sort' is not a column of x, which has f0, f1"):
        make_dataset(frame, "sort")


@pytest.mark.parametrize(
    ("x", "y", "options", "message"),
    [
        (FLOATS[0], LABELS, {}, r"x has shape \(12,\); expected vectors \(n, d\) or images"),
        (BYTES[:, :, :3, :3], LABELS, {}, "does not tell where the channels are; pass layout="),
        (np.ones((40, 3, 5, 4)), LABELS, {}, "does not tell where the channels are; pass layout="),
        (BYTES, LABELS, {"layout": "CHW"}, "layout='CHW' is invalid: expected 'NCHW', 'NHWC'"),
        (BYTES.astype(int) * 2, LABELS, {}, "x has integers from 0 to 510; expected images with"),
        (BYTES.astype(float), LABELS, {}, "values from 0 to 255, .* pass scale=255 for pixels"),
        (np.where(FLOATS > 0.5, np.nan, 0), LABELS, {}, r"x has \d+ values that are NaN or inf"),
        (FLOATS.astype(str), LABELS, {}, "x has the dtype <U.*expected integers from 0 to 255 or"),
        (FLOATS * 1j, LABELS, {}, "x has the dtype complex128; expected"),
        ([[1.0], [1.0, 2.0]], [0, 1], {}, "x cannot be read as one array"),
        (FLOATS[:30], LABELS, {}, "x has 30 samples, but y has 40 labels; expected one label per"),
        (FLOATS[:0], LABELS[:0], {}, "x is empty"),
        (FLOATS, np.eye(4)[LABELS], {}, r"y has shape \(40, 4\).*pass y.argmax\(axis=1\)"),
        (FLOATS, LABELS + 0.5, {}, "y has the label 0.5; expected class labels.*Regression is"),
        (FLOATS, np.where(LABELS, LABELS, np.nan), {}, "y has the label nan; expected class"),
        (FLOATS, [None, *LABELS[1:]], {}, "y has missing labels; every sample needs one"),
        (FLOATS, np.arange(40), {}, "y has one sample of the label 0; without test, every class"),
        (FLOATS, LABELS, {"test_share": 1.5}, "test_share=1.5 is invalid: expected a number above"),
        (FLOATS, LABELS, {"scale": 0}, "scale=0 is invalid: expected a positive number"),
        (FLOATS, LABELS, {"test": (FLOATS, LABELS + 3)}, "do not occur in y: 4, 5, 6; every"),
        (FLOATS, LABELS, {"test": (FLOATS[:, :5], LABELS)}, r"test_x has images of shape \(1, 1, "),
        (BYTES, LABELS, {"test": (BYTES / 255, LABELS)}, "must be bytes or both floats"),
    ],
)  # fmt: skip
def test_unsuitable_data_is_described(x, y, options, message):
    with pytest.raises(ValueError, match=message):
        make_dataset(x, y, **options)


@pytest.mark.parametrize(
    ("x", "y", "options", "message"),
    [
        (FLOATS, None, {}, "x is a ndarray without labels; pass y, or a torch Dataset with a len"),
        (iter([]), None, {}, "x is a list_iterator without labels; pass y, or a torch Dataset"),
        (Pairs(FLOATS, [0]), "label", {}, "y='label' names a column, but x is a Pairs; pass a"),
        ([{"image": 1}], None, {}, r"item 0 of x is a dict; expected a pair \(sample, label\)"),
        ({"a": 1}, LABELS, {}, "x is a dict; pass one array"),
        (FLOATS, LABELS, {"test": (FLOATS,)}, r"test has 1 parts; expected the pair \(x, y\)"),
    ],
)  # fmt: skip
def test_unsuitable_types_are_named(x, y, options, message):
    with pytest.raises(TypeError, match=message):
        make_dataset(x, y, **options)


def test_samples_of_a_torch_data_set_must_have_one_shape():
    items = [(np.zeros((2, 2)), 0), (np.zeros((3, 2)), 1)]
    with pytest.raises(ValueError, match=r"samples of shape \(2, 2\) and \(3, 2\); resize them"):
        make_dataset(items)


def test_a_sparse_matrix_is_told_to_become_dense():
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(TypeError, match=r"x is a csr_matrix; pass x.toarray\(\)"):
        make_dataset(sparse.csr_matrix(FLOATS), LABELS)


def test_floats_become_streams_and_stay_as_they_are():
    data = make_dataset(FLOATS * 8, LABELS, scale=8)
    before = data.train_x.clone(), data.test_x.clone()
    x, _ = split(data, tasks=2).tasks[0].train()
    assert x.max() <= 1
    task = permuted(data, tasks=2, samples=None).tasks[1]
    assert torch.equal(task.test()[0], task.test()[0])
    # Without a pixel map or rows, the floats are those of the data set itself.
    Part(data.test_x, None, data.test_y, data.scale).floats()[0].zero_()
    assert torch.equal(before[0], data.train_x)
    assert torch.equal(before[1], data.test_x)
    with pytest.raises(ValueError, match=r"shape \(1, 1, 12\), which cannot be rotated; use"):
        rotated(data)
