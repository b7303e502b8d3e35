"""Fetching data sets, and the command that does it."""

import argparse
import dataclasses
import gzip
import io
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from gradproj.experiments import data
from gradproj.experiments.cli import data as command
from gradproj.experiments.data import DataError, load
from gradproj.experiments.data.cifar import CIFAR10, CIFAR100
from gradproj.experiments.data.download import download
from gradproj.experiments.data.mnist import FASHION_MNIST, MNIST
from gradproj.experiments.data.tiny_imagenet import TINY_IMAGENET


def test_an_archive_is_fetched_and_unpacked(cifar, offer, tmp_path):
    source, root, _ = cifar["cifar10"]
    with io.BytesIO() as out:
        with tarfile.open(fileobj=out, mode="w:gz") as pack:
            pack.add(root / source.folder, source.folder)
        archive = out.getvalue()
    item = offer("cifar-10-binary.tar.gz", archive)
    fresh = tmp_path / "fresh"
    source = dataclasses.replace(source, downloads=(item,))
    assert torch.equal(source.load(fresh).train_x, source.load(root).train_x)


def test_tiny_imagenet_is_fetched_as_a_zip(tiny_files, offer, tmp_path):
    with io.BytesIO() as out:
        with zipfile.ZipFile(out, "w") as pack:
            for name, content in tiny_files.items():
                pack.writestr(f"{TINY_IMAGENET.folder}/{name}", content)
        item = offer("tiny-imagenet-200.zip", out.getvalue())
    source = dataclasses.replace(TINY_IMAGENET, downloads=(item,))
    assert len(source.load(tmp_path / "fresh").train_x) == 4


def test_files_are_fetched_one_by_one(mnist, offer, tmp_path):
    source, root, _ = mnist
    content = {name: (root / source.folder / name).read_bytes() for name in source.files}
    items = tuple(offer(f"{name}.gz", gzip.compress(raw)) for name, raw in content.items())
    source = dataclasses.replace(source, downloads=items)
    assert len(source.load(tmp_path / "fresh").train_x) == 12


def test_many_may_ask_at_once(cifar, offer, tmp_path, monkeypatch):
    source, root, _ = cifar["cifar10"]
    with io.BytesIO() as out:
        with tarfile.open(fileobj=out, mode="w:gz") as pack:
            pack.add(root / source.folder, source.folder)
        source = dataclasses.replace(source, downloads=(offer("set.tar.gz", out.getvalue()),))
    downloads = []

    def counted(item, folder):
        downloads.append(item.name)
        return download(item, folder)

    monkeypatch.setattr("gradproj.experiments.data.source.download", counted)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: source.load(tmp_path / "fresh"), range(8)))
    assert downloads == ["set.tar.gz"]
    assert all(torch.equal(found[0].train_x, other.train_x) for other in found)


def test_an_incomplete_folder_is_not_overwritten(cifar):
    source, root, _ = cifar["cifar10"]
    (root / source.folder / "test_batch.bin").unlink()
    with pytest.raises(DataError, match="is there but not complete; delete the folder"):
        source.load(root)


@pytest.mark.parametrize("source", data.SOURCES.values(), ids=data.SOURCES)
def test_without_data_and_download_the_error_says_what_to_do(source, tmp_path):
    with pytest.raises(DataError, match=f"is not in .*data fetch {source.name}.*--data-dir"):
        load(source.name, tmp_path, download=False)


@pytest.mark.parametrize("source", data.SOURCES.values(), ids=data.SOURCES)
def test_without_data_and_network_the_error_says_what_to_do(source, tmp_path, monkeypatch):
    def no_network(*_, **__):
        raise OSError("Network is unreachable")

    monkeypatch.setattr("gradproj.experiments.data.download.urlopen", no_network)
    with pytest.raises(DataError, match=r"cannot download .*\n.*unreachable\n(.*\n)?.*by hand"):
        load(source.name, tmp_path)


def test_a_data_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot write mnist in .*file"):
        load("mnist", tmp_path / "file" / "data")


def test_the_publishers_checksums_are_complete():
    for source in (MNIST, FASHION_MNIST, CIFAR10, CIFAR100):
        assert all(len(digest) == 64 for digest in source.files.values())
    for source in data.SOURCES.values():
        assert all(len(item.md5) == 32 for item in source.downloads)


def run(*words):
    parser = argparse.ArgumentParser()
    command.configure(parser)
    return command.execute(parser.parse_args(words))


def test_command_list_and_where(mnist, capsys):
    _, root, _ = mnist
    assert run("--data-dir", str(root)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"data folder: {root}"
    assert any("mnist" in line and " there " in line for line in lines)
    assert any("cifar100" in line and " missing " in line for line in lines)
    assert run("where", "--data-dir", str(root)) == 0
    assert capsys.readouterr().out.strip() == str(root)


def test_command_verify(mnist, capsys, monkeypatch):
    source, root, _ = mnist
    monkeypatch.setitem(data.SOURCES, "mnist", source)
    assert run("verify", "--data-dir", str(root)) == 0
    out = capsys.readouterr().out
    assert "mnist: 12 + 10 images, 10 classes" in out
    assert "cifar10: missing" in out
    (root / source.folder / "train-labels-idx1-ubyte").write_bytes(b"?")
    assert run("verify", "mnist", "--data-dir", str(root)) == 1
    assert "train-labels-idx1-ubyte is damaged" in capsys.readouterr().err
    assert run("verify", "cifar10", "--data-dir", str(root)) == 1
    assert "cifar10 is not in" in capsys.readouterr().err


def test_command_fetch(mnist, offer, tmp_path, capsys, monkeypatch):
    source, root, _ = mnist
    items = tuple(offer(name, (root / source.folder / name).read_bytes()) for name in source.files)
    monkeypatch.setitem(data.SOURCES, "mnist", dataclasses.replace(source, downloads=items))
    fresh = tmp_path / "fresh"
    assert run("fetch", "mnist", "--data-dir", str(fresh)) == 0
    assert "mnist: 12 + 10 images" in capsys.readouterr().out
    assert run("fetch", "digits", "mnist", "--data-dir", str(fresh)) == 0
    assert capsys.readouterr().out.startswith("digits: embedded; nothing to fetch")
    assert run("fetch", "digits", "--data-dir", str(tmp_path / "none")) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    with pytest.raises(ValueError, match="fetch needs the name of a data set"):
        run("fetch")
    with pytest.raises(ValueError, match="did you mean 'mnist'"):
        run("fetch", "mnits")
