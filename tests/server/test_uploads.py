from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dippm.server.errors import ServiceError
from dippm.server.uploads import EXTENSIONS, READ_EXTENSIONS, UploadStore


def test_a_file_is_there_while_its_request_is(tmp_path: Path) -> None:
    async def run() -> None:
        store = UploadStore(tmp_path, max_upload_mb=3, workers=1)
        async with store.receive() as incoming:
            incoming.open("model.ONNX")
            content = b"abc" * 700_000
            for start in range(0, len(content), 65_536):
                await incoming.write(content[start : start + 65_536])
            await incoming.flush()
            assert incoming.path is not None
            assert incoming.path.name == "upload.onnx"
            assert incoming.path.read_bytes() == content
            assert incoming.content == hashlib.sha256(content).hexdigest()
            assert incoming.path.parent.stat().st_mode & 0o077 == 0
        assert list(tmp_path.iterdir()) == []

    asyncio.run(run())


def test_a_file_is_gone_when_its_request_fails(tmp_path: Path) -> None:
    async def fail() -> None:
        async with UploadStore(tmp_path, max_upload_mb=1, workers=1).receive() as incoming:
            incoming.open("a.onnx")
            raise KeyError

    with pytest.raises(KeyError):
        asyncio.run(fail())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("../../etc/passwd.onnx", "passwd.onnx"),
        ("/etc/cron.d/x.onnx", "x.onnx"),
        ("C:\\models\\x.onnx", "x.onnx"),
        ("..\\..\\x.onnx", "x.onnx"),
        ("a\nb\x1b[31m.onnx", "a?b?[31m.onnx"),
        ("x" * 500 + ".onnx", "x" * 115 + ".onnx"),
        ("модель.pt2", "модель.pt2"),
    ],
)
def test_of_a_name_the_extension_alone_reaches_the_disk(tmp_path: Path, given: str, shown: str) -> None:
    async def run() -> None:
        async with UploadStore(tmp_path, max_upload_mb=1, workers=1).receive() as incoming:
            incoming.open(given)
            assert incoming.name == shown
            assert incoming.path is not None
            assert incoming.path.parent.parent == tmp_path
            assert incoming.path.stem == "upload"
            assert incoming.path.suffix in EXTENSIONS

    asyncio.run(run())


@pytest.mark.parametrize(
    "name", ["", ".onnx", "..", "/", "model", "model.exe", "model.onnx.gz", "model.onnx/..", "a.onnx\x00.sh"]
)
def test_other_extensions_are_refused(tmp_path: Path, name: str) -> None:
    async def run() -> None:
        async with UploadStore(tmp_path, max_upload_mb=1, workers=1).receive() as incoming:
            with pytest.raises(ServiceError) as caught:
                incoming.open(name)
            assert (caught.value.code, caught.value.status) == ("upload.extension", 415)
            assert str(caught.value).endswith(f"Send one of {', '.join(READ_EXTENSIONS)}.")
            assert not {".keras", ".h5", ".pb"} & set(READ_EXTENSIONS)

    asyncio.run(run())


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with UploadStore(tmp_path, max_upload_mb=1, workers=1).receive() as incoming:
            incoming.open("a.onnx")
            await incoming.write(bytes(2**20))
            with pytest.raises(ServiceError) as caught:
                await incoming.write(b"x")
            assert (caught.value.code, caught.value.status) == ("upload.too_large", 413)

    asyncio.run(run())


def test_all_uploads_together_are_bounded_and_give_their_room_back(tmp_path: Path) -> None:
    async def fill(store: UploadStore, count: int) -> None:
        if not count:
            return
        async with store.receive() as incoming:
            incoming.open("a.onnx")
            await incoming.write(bytes(2**20))
            await fill(store, count - 1)

    store = UploadStore(tmp_path, max_upload_mb=1, workers=1)
    asyncio.run(fill(store, 20))
    with pytest.raises(ServiceError) as caught:
        asyncio.run(fill(store, 21))
    assert (caught.value.code, caught.value.status) == ("upload.no_space", 503)
    assert "Retry-After" in caught.value.headers
    asyncio.run(fill(store, 20))


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with UploadStore(tmp_path, max_upload_mb=1, workers=1).receive() as incoming:
            incoming.open("a.onnx")
            await incoming.write(b"x")

            def fail(*_: Any) -> None:
                raise OSError(errno.ENOSPC, "No space left on device")

            monkeypatch.setattr(incoming, "_append", fail)
            with pytest.raises(ServiceError) as caught:
                await incoming.flush()
            assert caught.value.code == "upload.no_space"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOSPC, "upload.no_space"),
        (errno.EDQUOT, "upload.no_space"),
        (errno.EFBIG, "upload.no_space"),
        (errno.EMFILE, "upload.open_files"),
        (errno.ENFILE, "upload.open_files"),
    ],
)
def test_what_need_not_last_is_refused_for_now(
    number: int, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    async def begin() -> None:
        async with UploadStore(tmp_path, max_upload_mb=1, workers=1).receive() as incoming:
            incoming.open("a.onnx")

    async def run() -> None:
        for owner, name in ((Path, "open"), (tempfile, "mkdtemp")):
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, fail)
                with pytest.raises(ServiceError) as caught:
                    await begin()
            assert (caught.value.code, caught.value.status) == (code, 503)
            assert "Retry-After" in caught.value.headers

    asyncio.run(run())
    assert list(tmp_path.iterdir()) == []


def test_what_an_archive_may_unpack_to_counts_while_a_worker_reads_it(tmp_path: Path) -> None:
    async def read(store: UploadStore, count: int, *, name: str, size: int) -> None:
        if not count:
            return
        async with store.receive() as incoming:
            incoming.open(name)
            await incoming.write(bytes(size))
            async with incoming.reading():
                incoming.claim_unpacked()
                await read(store, count - 1, name=name, size=size)

    store = UploadStore(tmp_path, max_upload_mb=1, workers=1)
    # Of 20 MiB each takes one and the four that it may unpack to.
    asyncio.run(read(store, 4, name="a.zip", size=2**20))
    with pytest.raises(ServiceError) as caught:
        asyncio.run(read(store, 5, name="a.zip", size=2**20))
    assert caught.value.code == "upload.no_space"
    # What is small unpacks to little, and what is no archive to nothing.
    asyncio.run(read(store, 50, name="a.zip", size=100))
    asyncio.run(read(store, 20, name="a.onnx", size=2**20))
    assert list(tmp_path.iterdir()) == []


def test_a_file_stays_while_it_is_read_though_its_request_is_gone(tmp_path: Path) -> None:
    async def run() -> None:
        store = UploadStore(tmp_path, max_upload_mb=1, workers=1)
        async with store.receive() as incoming:
            incoming.open("a.onnx")
            await incoming.write(b"x")
            await incoming.flush()
            reading = incoming.reading()
            await reading.__aenter__()
        assert incoming.path is not None
        assert incoming.path.read_bytes() == b"x"
        await reading.__aexit__(None, None, None)
        assert list(tmp_path.iterdir()) == []

    asyncio.run(run())


def test_others_are_served_while_a_file_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count_turns: Callable[[], Any]
) -> None:
    remove = shutil.rmtree

    def remove_slowly(path: Path, **options: Any) -> None:
        time.sleep(0.3)
        remove(path, **options)

    async def run() -> None:
        monkeypatch.setattr(shutil, "rmtree", remove_slowly)
        async with count_turns() as turns:
            async with UploadStore(tmp_path, max_upload_mb=1, workers=1).receive():
                before = len(turns)
            assert len(turns) - before >= 5

    asyncio.run(run())
