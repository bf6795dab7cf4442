"""Stores: complete files only, plain names only, and no credentials in any text."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from learner.stores.store import Store, StoreError, is_url, redacted


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}/store" if request.param == "file" else f"memory://{tmp_path}/store")


def test_files_come_back_as_they_were_sent(store: Store, tmp_path: Path) -> None:
    local = tmp_path / "local.bin"
    local.write_bytes(bytes(range(256)))
    store.send("run/folder/a.bin", local)
    store.send_bytes("run/b.txt", b"first")
    store.send_bytes("run/b.txt", b"second")  # replaced
    assert store.names() == ["run/b.txt", "run/folder/a.bin"]
    assert store.names("run/folder") == ["run/folder/a.bin"]
    store.fetch("run/folder/a.bin", tmp_path / "back")
    store.move("run/b.txt", "run/c.txt")
    store.fetch("run/c.txt", tmp_path / "text")
    assert (tmp_path / "back").read_bytes() == bytes(range(256))
    assert (tmp_path / "text").read_bytes() == b"second"
    store.remove("run/c.txt")
    assert store.names("run") == ["run/folder/a.bin"]


def test_a_folder_that_does_not_exist_is_empty(store: Store) -> None:
    assert store.names("nothing") == []


def test_an_upload_that_breaks_off_leaves_the_earlier_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(f"file://{tmp_path}/store")
    store.send_bytes("run/a", b"earlier")
    filesystem = store._opened[0]

    def half(path: str, content: bytes) -> None:
        Path(path).write_bytes(content[:2])
        raise ConnectionError("broken")

    monkeypatch.setattr(filesystem, "pipe_file", half)
    with pytest.raises(StoreError, match="broken"):
        store.send_bytes("run/a", b"later")
    with pytest.raises(StoreError, match="broken"):
        store.send_bytes("run/b", b"new")
    assert store.names() == ["run/a"]
    assert (tmp_path / "store/run/a").read_bytes() == b"earlier"


def test_names_that_leave_the_folder_or_hide_are_not_listed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    root = store._opened[1]
    names = ["run/a.pt", "run/../../b.pt", "/etc/c.pt", "run/.hidden", "run\\..\\d.pt"]
    monkeypatch.setattr(store._opened[0], "find", lambda path: [name if name[0] == "/" else f"{root}/{name}" for name in names])
    assert store.names() == ["run/a.pt"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("sftp://user:pass@host/path", "sftp://***@host/path"),
        ("sftp://user:p@ss@host/path", "sftp://***@host/path"),
        ("ftp://user@host", "ftp://***@host"),
        ("of 'ftp://a:b@h/p' and ftp://c:d@h/p", "of 'ftp://***@h/p' and ftp://***@h/p"),
        ("s3://bucket/path/a@b", "s3://bucket/path/a@b"),
        ("mail a@b.c", "mail a@b.c"),
    ],
)
def test_credentials_are_redacted(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_errors_of_a_store_are_one_line_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store("memory://user:pass@host/path")
    assert "pass" not in store.address

    def fail(path: str) -> None:
        raise RuntimeError("lost\nftp://user:pass@host/path")

    monkeypatch.setattr(store._opened[0], "find", fail)
    with pytest.raises(StoreError) as caught:
        store.names()
    assert str(caught.value) == "RuntimeError: lost ftp://***@host/path"


def test_an_unknown_protocol_and_a_missing_package_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="wanted the address of a store, got 'nowhere://a'"):
        Store("nowhere://a")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    for name in ("s3", "s3a"):
        monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, name, raising=False)
    with pytest.raises(ValueError, match=r"s3.*requirements-store\.txt"):
        Store("s3://bucket/path")


@pytest.mark.parametrize(
    ("text", "found"), [("s3://a", True), ("file:///a/b", True), ("results/run", False), ("latest", False)]
)
def test_addresses_are_told_from_paths(text: str, found: bool) -> None:
    assert is_url(text) is found
