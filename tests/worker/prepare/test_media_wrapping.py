"""Sound pictures with large or broken things around them are pictures."""

from __future__ import annotations

import base64
import io
import struct
import zlib

import pytest
from PIL import Image, PngImagePlugin

from mlxq_schemas import MediaRef
from mlxq_schemas.errors import MediaError
from mlxq_worker.prepare.media import MediaPolicy, decode_image
from mlxq_worker.prepare.media.formats import without_notes
from mlxq_worker.prepare.media.source import read_source

PICTURE = Image.new("RGB", (32, 24), (200, 10, 10))
LONG = "node " * 400_000


def png(**save: object) -> bytes:
    out = io.BytesIO()
    PICTURE.save(out, "PNG", **save)
    return out.getvalue()


def with_text(*, zipped: bool, international: bool = False) -> bytes:
    info = PngImagePlugin.PngInfo()
    (info.add_itxt if international else info.add_text)("workflow", LONG, zip=zipped)
    return png(pnginfo=info)


def with_chunk(kind: bytes, body: bytes, crc: int | None = None) -> bytes:
    """A PNG with a chunk after its header."""
    data, check = png(), zlib.crc32(kind + body) if crc is None else crc
    return (
        data[:33]
        + struct.pack(">I", len(body))
        + kind
        + body
        + struct.pack(">I", check)
        + data[33:]
    )


WRAPPED = {
    "tEXt": with_text(zipped=False),
    "zTXt": with_text(zipped=True),
    "iTXt": with_text(zipped=True, international=True),
    "profile of 1.5 MB": png(icc_profile=bytes(1_500_000)),
    "zTXt that is no zlib": with_chunk(b"zTXt", b"k\0\0not zlib"),
    "a text with a wrong checksum": with_chunk(b"tEXt", b"k\0v", 7),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_a_png_with_large_or_broken_notes(name):
    found = decode_image(WRAPPED[name], name, MediaPolicy())
    assert (found.size, found.getpixel((5, 5))) == ((32, 24), (200, 10, 10))


def test_such_a_png_in_an_icon():
    data = WRAPPED["zTXt"]
    entry = struct.pack("<BBBBHHII", 32, 24, 0, 0, 1, 32, len(data), 22)
    icon = b"\0\0\1\0\1\0" + entry + data
    assert decode_image(icon, "icon", MediaPolicy()).getpixel((5, 5)) == (200, 10, 10)


def test_what_is_drawn_and_what_turns_it_stays():
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = png(exif=exif, icc_profile=b"profile")
    assert decode_image(turned, "turned", MediaPolicy()).size == (24, 32)
    plain = png()
    assert without_notes(plain) is plain
    assert without_notes(png(icc_profile=b"profile")) == plain


def test_a_png_that_is_cut_or_broken_is_none():
    whole = WRAPPED["tEXt"]
    for data in (whole[:-30], whole[: len(whole) // 2], with_chunk(b"tEXt", b"k\0v")[:50]):
        with pytest.raises(MediaError):
            decode_image(data, "cut", MediaPolicy())


@pytest.mark.parametrize("text", ["aGVsbG8=", "aGVs\nbG8=", " aGVsbG8= ", "aGVsbG8%3D"])
def test_base64_is_cleaned_where_it_needs_it(text):
    ref = MediaRef(url=f"data:;base64,{text}")
    assert read_source(ref, MediaPolicy(), lambda _: None) == b"hello"


@pytest.mark.parametrize("text", ["aGVsbG8", "aGV!bG8=", "====", "%%%"])
def test_what_is_no_base64(text):
    with pytest.raises(MediaError, match="is not valid base64"):
        read_source(MediaRef(url=f"data:;base64,{text}"), MediaPolicy(), lambda _: None)
    assert base64.b64encode(b"hello") == b"aGVsbG8="
