"""Archives: whole ones appear at once, hostile and broken ones leave nothing behind."""

import io
import tarfile
import zipfile

import pytest

from gradproj.experiments.data import DataError
from gradproj.experiments.data.archive import extract


def make_tar(path, *members, mode="w:gz"):
    with tarfile.open(path, mode) as pack:
        for name, content in members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(content) if info.isreg() else 0
            pack.addfile(info, io.BytesIO(content))
    return path


def make_zip(path, *members):
    with zipfile.ZipFile(path, "w") as pack:
        for name, content in members:
            pack.writestr(name, content)
    return path


def tar_special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def zip_link(name):
    info = zipfile.ZipInfo(name)
    info.create_system = 3
    info.external_attr = 0o120777 << 16
    return info


@pytest.mark.parametrize("make", [make_tar, make_zip])
def test_extract_puts_the_folder_in_place(make, tmp_path):
    archive = make(tmp_path / "a", ("set/one.bin", b"1"), ("set/deep/two.bin", b"22"))
    root = tmp_path / "data" / "here"
    assert extract(archive, root, "set") == root / "set"
    assert (root / "set/one.bin").read_bytes() == b"1"
    assert (root / "set/deep/two.bin").read_bytes() == b"22"
    assert [p.name for p in root.iterdir()] == ["set"]


@pytest.mark.parametrize(
    "members",
    [
        [("set/ok", b""), ("set/../../outside", b"x")],
        [("/outside", b"x")],
        [("set/a\\..\\..\\outside", b"x")],
        [("C:/outside", b"x")],
        [(tar_special("set/link", tarfile.SYMTYPE, "/etc"), b"")],
        [(tar_special("set/link", tarfile.LNKTYPE, "set/ok"), b"")],
        [(tar_special("set/device", tarfile.CHRTYPE), b"")],
        [(tar_special("set/pipe", tarfile.FIFOTYPE), b"")],
    ],
)
def test_hostile_tar_members_are_refused(members, tmp_path):
    root = tmp_path / "data"
    archive = make_tar(tmp_path / "evil.tar.gz", *members)
    with pytest.raises(DataError, match=r"not safe to unpack: its member .* delete it"):
        extract(archive, root, "set")
    assert list(root.iterdir()) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "evil.tar.gz"]


@pytest.mark.parametrize("name", ["set/../../outside", "/outside", zip_link("set/link")])
def test_hostile_zip_members_are_refused(name, tmp_path):
    root = tmp_path / "data"
    archive = make_zip(tmp_path / "evil.zip", ("set/ok", b"1"), (name, b"/etc/passwd"))
    with pytest.raises(DataError, match="not safe to unpack"):
        extract(archive, root, "set")
    assert list(root.iterdir()) == []
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("make", [make_tar, make_zip])
def test_half_an_archive_leaves_nothing(make, tmp_path):
    content = bytes(range(256)) * 400
    archive = make(tmp_path / "a", *((f"set/{i}", content[i:]) for i in range(20)))
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="is damaged"):
        extract(archive, tmp_path / "data", "set")
    assert list((tmp_path / "data").iterdir()) == []


def test_a_broken_gzip_stream_is_noticed(tmp_path):
    archive = make_tar(tmp_path / "a.tar.gz", ("set/x", bytes(range(256)) * 400))
    data = bytearray(archive.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 40] = b"\xff" * 40
    archive.write_bytes(bytes(data))
    with pytest.raises(DataError, match="is damaged"):
        extract(archive, tmp_path / "data", "set")
    assert list((tmp_path / "data").iterdir()) == []


def test_an_archive_of_something_else(tmp_path):
    archive = make_zip(tmp_path / "a.zip", ("other/x", b"1"))
    with pytest.raises(DataError, match="has no folder set"):
        extract(archive, tmp_path / "data", "set")


def test_a_file_in_the_way_of_the_folder(tmp_path):
    archive = make_zip(tmp_path / "a.zip", ("set/x", b"1"))
    (tmp_path / "data").write_text("a file")
    with pytest.raises(DataError, match=r"cannot write set in .*--data-dir"):
        extract(archive, tmp_path / "data", "set")
