"""Checksums of sealed and of signed files."""

import json

import pytest

from gradproj.experiments.common.files import (
    DamagedError,
    file_digest,
    read_signed,
    read_table,
    seal,
    sign,
    unseal,
)


def test_a_sealed_file_of_another_kind_is_refused():
    content = seal(b"kind 1", b"hello") + b"hello"
    assert unseal(b"kind 1", content) == b"hello"
    with pytest.raises(DamagedError, match="checksum does not match"):
        unseal(b"kind 2", content)


@pytest.mark.parametrize("length", [0, 6, 7, 40, 72])
def test_a_sealed_file_cut_in_its_header_is_refused(length):
    with pytest.raises(DamagedError, match="checksum does not match"):
        unseal(b"kind 1", (seal(b"kind 1", b"hello") + b"hello")[:length])


def test_a_signed_table_is_read_without_its_checksum(tmp_path):
    values = {"version": 2, "acc": [0.5, None], "name": "ḡ"}
    (tmp_path / "a.json").write_bytes(sign(values))
    assert read_signed(tmp_path / "a.json", since=2) == values


@pytest.mark.parametrize("version", [2, 3, True, "1", None, 1.5])
def test_a_checksum_is_missing_only_in_older_versions(version, tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"version": version, "acc": 0.5}))
    with pytest.raises(DamagedError, match=r"a\.json is damaged: it has no checksum"):
        read_signed(path, since=2)
    path.write_text(json.dumps({"version": 1, "acc": 0.5}))
    assert read_signed(path, since=2)["acc"] == 0.5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff", "is not JSON"),
        (b"{", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1]", "does not hold a table"),
    ],
)
def test_a_file_without_a_table_is_named(content, message, tmp_path):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.json {message}"):
        read_table(tmp_path / "a.json")


def test_a_file_that_is_shorter_than_asked_has_no_digest(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"abc")
    assert file_digest(path, 4) == ""
    assert file_digest(path, 3) == file_digest(path) != file_digest(path, 2)
    assert file_digest(tmp_path / "missing", 0) == ""
