"""Data sets by name, from the user's data folder or embedded, and from the user's arrays."""

from gradproj.experiments.common.errors import DataError
from gradproj.experiments.data.dataset import Dataset, hold_out
from gradproj.experiments.data.files import data_dir
from gradproj.experiments.data.from_torchvision import from_pair
from gradproj.experiments.data.own import make_dataset
from gradproj.experiments.data.registry import SOURCES, load

__all__ = [
    "SOURCES",
    "DataError",
    "Dataset",
    "data_dir",
    "from_pair",
    "hold_out",
    "load",
    "make_dataset",
]
