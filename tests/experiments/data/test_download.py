"""Downloads: resumed, checked, and clear when they cannot be had. The server is local."""

import hashlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gradproj.experiments.data import DataError
from gradproj.experiments.data.download import Download, download

CONTENT = bytes(range(256)) * 2000
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests, self.ranges, self.cut = [], True, None

    def url(self, name="set.bin"):
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        wanted = self.headers.get("Range")
        self.server.requests.append((self.path, wanted))
        if "missing" in self.path:
            self.send_error(404)
            return
        body, start = (b"other" if "other" in self.path else CONTENT), 0
        if wanted and self.server.ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
            if start >= len(body):
                self.send_error(416)
                return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        self.wfile.write(body[start : self.server.cut])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_download_is_checked_and_put_in_place(server, tmp_path, capsys):
    path = download(Download((server.url(),), MD5), tmp_path / "new" / "folder")
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["set.bin"]
    assert "downloading set.bin (0.5 MB) from 127.0.0.1" in capsys.readouterr().err


def test_what_is_there_and_whole_is_not_fetched_again(server, tmp_path):
    (tmp_path / "set.bin").write_bytes(CONTENT)
    download(Download((server.url(),), MD5), tmp_path)
    assert server.requests == []


def test_a_damaged_file_is_fetched_again(server, tmp_path):
    (tmp_path / "set.bin").write_bytes(CONTENT[:-1])
    assert download(Download((server.url(),), MD5), tmp_path).read_bytes() == CONTENT


def test_half_a_download_is_named_kept_and_resumed(server, tmp_path):
    server.cut = 100_000
    with pytest.raises(DataError, match="closed after 100,000 of 512,000 bytes"):
        download(Download((server.url(),), MD5), tmp_path)
    assert not (tmp_path / "set.bin").exists()
    assert (tmp_path / "set.bin.part").stat().st_size == 100_000
    server.cut = None
    assert download(Download((server.url(),), MD5), tmp_path).read_bytes() == CONTENT
    assert server.requests[-1] == ("/set.bin", "bytes=100000-")
    assert not (tmp_path / "set.bin.part").exists()


def test_a_server_without_ranges_starts_over(server, tmp_path):
    server.ranges = False
    (tmp_path / "set.bin.part").write_bytes(CONTENT[:1000])
    assert download(Download((server.url(),), MD5), tmp_path).read_bytes() == CONTENT


def test_a_part_that_is_whole_already_is_taken(server, tmp_path):
    (tmp_path / "set.bin.part").write_bytes(CONTENT)
    assert download(Download((server.url(),), MD5), tmp_path).read_bytes() == CONTENT


def test_a_part_of_something_else_is_thrown_away(server, tmp_path):
    (tmp_path / "set.bin.part").write_bytes(b"x" * 1000)
    with pytest.raises(DataError, match="checksum is not the publisher's"):
        download(Download((server.url(),), MD5), tmp_path)
    assert download(Download((server.url(),), MD5), tmp_path).read_bytes() == CONTENT


def test_a_wrong_file_is_refused(server, tmp_path):
    with pytest.raises(DataError, match=r"other.bin: its checksum is not the publisher's"):
        download(Download((server.url("other.bin"),), MD5), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_next_mirror_is_tried(server, tmp_path):
    urls = (server.url("missing/set.bin"), server.url())
    assert download(Download(urls, MD5), tmp_path).read_bytes() == CONTENT


def test_without_a_connection_the_error_says_what_to_do(server, tmp_path):
    # A port that nothing listens to any more.
    closed = Server()
    closed.server_close()
    urls = (closed.url(), server.url("missing/set.bin"))
    with pytest.raises(DataError) as caught:
        download(Download(urls, MD5), tmp_path)
    message = str(caught.value)
    assert "cannot download set.bin" in message
    assert "Connection refused" in message
    assert "404" in message or "File not found" in message or "Not Found" in message
    assert f"put the file at {tmp_path / 'set.bin'}" in message
    assert "--data-dir" in message


def test_a_folder_that_cannot_be_written(server, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot write set.bin in .*file.*GRADPROJ_DATA"):
        download(Download((server.url(),), MD5), tmp_path / "file" / "folder")


def test_a_full_disk(server, tmp_path, monkeypatch):
    class Full:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def write(self, _):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.open", lambda *_, **__: Full())
    with pytest.raises(DataError, match="No space left on device; free some space"):
        download(Download((server.url(),), MD5), tmp_path)
