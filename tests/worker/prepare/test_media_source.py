"""Where media come from: files, data URIs, blobs, and what the producer could not read."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path
from urllib.parse import quote

import pytest

from mlxq_schemas import LoadError, MediaRef
from mlxq_schemas.errors import (
    MediaError,
    MediaFetchFailed,
    MediaForbidden,
    MediaNotFound,
    MediaTooLarge,
)
from mlxq_worker.prepare.media import MediaPolicy, read_source
from mlxq_worker.prepare.media.naming import shown

DATA = b"picture"
SHA = hashlib.sha256(DATA).hexdigest()


def no_blobs(sha256: str) -> bytes | None:
    raise AssertionError(f"nobody asked for {sha256}")


def read(url: str, policy: MediaPolicy | None = None) -> bytes:
    return read_source(MediaRef(url=url), policy or MediaPolicy(), no_blobs)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "a b.png").write_bytes(DATA)
    (tmp_path / "secret.png").write_bytes(b"secret")
    return folder


@pytest.fixture
def policy(root: Path) -> MediaPolicy:
    return MediaPolicy(roots=(root,))


# Files


def test_path_and_file_url_under_a_root(root: Path, policy: MediaPolicy) -> None:
    assert read(str(root / "a b.png"), policy) == DATA
    assert read((root / "a b.png").as_uri(), policy) == DATA
    assert read(f"file://localhost{quote(str(root))}/a%20b.png", policy) == DATA


def test_relative_path_is_looked_up_in_each_root(root: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert read("a b.png", MediaPolicy(roots=(empty, root))) == DATA


def test_root_that_is_a_link(root: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(root)
    assert read(str(link / "a b.png"), MediaPolicy(roots=(link,))) == DATA


def test_link_that_stays_inside(root: Path, policy: MediaPolicy) -> None:
    (root / "alias.png").symlink_to("a b.png")
    assert read("alias.png", policy) == DATA


@pytest.mark.parametrize(
    "path", ["../secret.png", "x/../../secret.png", "/etc/passwd", "file:///etc/passwd", ".."]
)
def test_outside_of_the_roots(policy: MediaPolicy, path: str) -> None:
    with pytest.raises(MediaForbidden, match="--media-root") as caught:
        read(path, policy)
    assert path.removeprefix("file://") in str(caught.value)


def test_encoded_traversal(root: Path, policy: MediaPolicy) -> None:
    with pytest.raises(MediaForbidden):
        read(f"file://{root}/%2e%2e/secret.png", policy)


def test_link_out_of_the_root(root: Path, policy: MediaPolicy) -> None:
    (root / "cat.png").symlink_to(root.parent / "secret.png")
    (root / "up").symlink_to(root.parent)
    for path in ("cat.png", "up/secret.png"):
        with pytest.raises(MediaForbidden):
            read(path, policy)


def test_no_roots_no_files(root: Path) -> None:
    with pytest.raises(MediaForbidden):
        read(str(root / "a b.png"))


def test_sibling_with_the_roots_name_as_prefix(root: Path, policy: MediaPolicy) -> None:
    other = root.with_name("photos-private")
    other.mkdir()
    (other / "cat.png").write_bytes(DATA)
    with pytest.raises(MediaForbidden):
        read(str(other / "cat.png"), policy)


def test_missing_file(policy: MediaPolicy) -> None:
    with pytest.raises(MediaNotFound, match=r"missing\.png does not exist"):
        read("missing.png", policy)


def test_outside_existence_is_not_told(policy: MediaPolicy) -> None:
    with pytest.raises(MediaForbidden) as there:
        read("../secret.png", policy)
    with pytest.raises(MediaForbidden) as absent:
        read("../nothing.png", policy)
    assert str(there.value) == str(absent.value).replace("nothing", "secret")


def test_things_that_are_no_files(root: Path, policy: MediaPolicy) -> None:
    os.mkfifo(root / "pipe")
    for path in (".", "pipe"):
        with pytest.raises(MediaError, match="is not a file"):
            read(path, policy)


def test_loop_of_links(root: Path, policy: MediaPolicy) -> None:
    (root / "loop").symlink_to("loop")
    with pytest.raises(MediaError):
        read("loop", policy)


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000])
def test_impossible_names(policy: MediaPolicy, path: str) -> None:
    with pytest.raises(MediaError) as caught:
        read(path, policy)
    assert len(str(caught.value)) < 400


def test_file_too_large(root: Path) -> None:
    with pytest.raises(MediaTooLarge, match="has 7 bytes; at most 6"):
        read("a b.png", MediaPolicy(roots=(root,), max_bytes=6))


def test_file_url_with_a_host(policy: MediaPolicy) -> None:
    with pytest.raises(MediaForbidden, match="no host"):
        read("file://server/share/cat.png", policy)


@pytest.mark.parametrize(
    "url", ["ftp://host/a.png", "gopher://h", "javascript:alert(1)", "s3://b/k"]
)
def test_unknown_scheme(url: str) -> None:
    with pytest.raises(MediaForbidden, match="media come as"):
        read(url)


# data: URIs


def test_data_uri() -> None:
    text = base64.b64encode(DATA).decode()
    assert read(f"data:image/png;base64,{text}") == DATA
    assert read(f"DATA:;BASE64,{quote(text)}") == DATA
    assert read(f"data:image/png;base64,{text[:4]}\n {text[4:]}") == DATA
    assert read("data:,pic%74ure") == DATA


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("data:image/png;base64", "has a comma"),
        ("data:image/png;base64,", "is empty"),
        ("data:image/png;base64,!!!!", "not valid base64"),
        ("data:image/png;base64,abcde", "not valid base64"),
        ("data:image/png;base64,ab=cdefg", "not valid base64"),
        ("data:image/png;base64,äöü", "not valid base64"),
    ],
)
def test_broken_data_uri(url: str, message: str) -> None:
    with pytest.raises(MediaError, match=message):
        read(url)


def test_data_uri_too_large() -> None:
    small = MediaPolicy(max_bytes=1000)
    for size in (1001, 100_000):
        with pytest.raises(MediaTooLarge, match="at most 1,000"):
            read("data:;base64," + base64.b64encode(bytes(size)).decode(), small)


# Blobs and producer errors


def test_blob() -> None:
    assert read_source(MediaRef(url=f"blob:{SHA}"), MediaPolicy(), {SHA: DATA}.get) == DATA


def test_missing_blob() -> None:
    with pytest.raises(
        MediaNotFound,
        match=r"not in the queue .*expired, .* submit the job again",
    ):
        read_source(MediaRef(url=f"blob:{SHA}"), MediaPolicy(), {}.get)


def test_blob_of_other_bytes() -> None:
    with pytest.raises(MediaError, match="other bytes"):
        read_source(MediaRef(url=f"blob:{SHA}"), MediaPolicy(), {SHA: b"other"}.get)


@pytest.mark.parametrize("name", ["", "abc", SHA.upper(), SHA + "\n", "../" + SHA])
def test_blob_names(name: str) -> None:
    with pytest.raises(MediaError, match="64 lower-case hex digits"):
        read(f"blob:{name}")


def test_producers_error_comes_first() -> None:
    error = LoadError(code="media_not_found", message="cat.png does not exist")
    with pytest.raises(MediaNotFound, match=r"cat\.png does not exist"):
        read_source(MediaRef(url="https://example.com/", error=error), MediaPolicy(), no_blobs)


@pytest.mark.parametrize("code", ["media_invalid", "media_fetch_failed", "from_the_future"])
def test_producers_error_keeps_its_code(code: str) -> None:
    ref = MediaRef(url="cat.png", error=LoadError(code=code, message="no"))
    with pytest.raises(MediaError) as caught:
        read_source(ref, MediaPolicy(), no_blobs)
    assert caught.value.code == code or "from_the_future" in str(caught.value)
    assert isinstance(caught.value, MediaFetchFailed) == (code == "media_fetch_failed")


def test_downloads_can_be_off() -> None:
    with pytest.raises(MediaForbidden, match="downloads nothing"):
        read("https://example.com/cat.png", MediaPolicy(allow_http=False))


# Names in messages


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("data:image/png;base64," + "A" * 1644, "data:image/png (1,233 bytes)"),
        ("https://me:pw@host:8443/a/b.png?sig=secret#x", "https://host:8443/a/b.png"),
        ("http://host:x/?sig=secret", "http://…"),
        (f"blob:{SHA}", f"blob:{SHA[:12]}…"),
        ("photos/cat.png", "photos/cat.png"),
        ("a\nb\x1b[31m", "a?b?[31m"),
        ("x" * 300, "x" * 200 + "…"),
    ],
)
def test_short_safe_names(url: str, name: str) -> None:
    assert shown(url) == name
