"""Decoding: real files, broken files, bombs."""

from __future__ import annotations

import io
import struct
import zlib
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mlxq_schemas.errors import MediaError, MediaTooLarge, MediaTooSmall
from mlxq_worker.prepare.media import MediaPolicy, decode_image
from mlxq_worker.prepare.media.formats import without_notes

POLICY = MediaPolicy()


def picture(size: tuple[int, int] = (16, 8), mode: str = "RGB") -> Image.Image:
    rng = np.random.default_rng(7)
    pixels = rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def encoded(image: Image.Image, fmt: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, fmt, **options)
    return out.getvalue()


def png_header(width: int, height: int) -> bytes:
    """A 1-bit PNG of that size; its data are zeros, packed small."""
    row_bytes = (width + 7) // 8 + 1
    packer = zlib.compressobj(9)
    data = b"".join(packer.compress(bytes(row_bytes)) for _ in range(height)) + packer.flush()

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def decode(data: bytes, policy: MediaPolicy = POLICY) -> Image.Image:
    return decode_image(data, "cat.png", policy)


FORMATS = [
    *("PNG", "BMP", "TIFF", "GIF", "JPEG", "WEBP", "AVIF", "JPEG2000", "ICO", "TGA", "PCX", "PPM"),
    *("SGI", "DIB", "MPO"),
]


@pytest.mark.parametrize("fmt", [f for f in FORMATS if f != "ICO"])
def test_known_formats(fmt: str) -> None:
    image = decode(encoded(picture(), fmt))
    assert (image.mode, image.size, image.info) == ("RGB", (16, 8), {})


@pytest.mark.parametrize(
    "fmt", ["PNG", "BMP", "TIFF", "JPEG2000", "TGA", "PCX", "PPM", "SGI", "DIB"]
)
def test_lossless_pixels_are_untouched(fmt: str) -> None:
    assert np.array_equal(np.asarray(decode(encoded(picture(), fmt))), np.asarray(picture()))


def psd(channels: int, body: bytes) -> bytes:
    """A flat Photoshop file of 16 x 8 pixels, 8 bits a channel, not packed."""
    head = struct.pack(">4sH6xHIIHH", b"8BPS", 1, channels, 8, 16, 8, 3)
    return head + bytes(4) + bytes(4) + bytes(4) + struct.pack(">H", 0) + body


def sun() -> bytes:
    """A Sun raster of the same size."""
    head = struct.pack(">8I", 0x59A66A95, 16, 8, 24, 16 * 8 * 3, 3, 0, 0)
    return head + picture().tobytes()


def test_formats_that_pillow_only_reads() -> None:
    planes = b"".join(band.tobytes() for band in picture().split())
    for data in (psd(3, planes), sun()):
        assert np.array_equal(np.asarray(decode(data)), np.asarray(picture()))
    assert np.asarray(decode(psd(4, planes + bytes(16 * 8)))).min() == 255


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_kinds_of_tga(mode: str) -> None:
    image = picture(mode="L").convert("LA") if mode == "LA" else picture(mode=mode)
    for packed in (None, "tga_rle")[: 1 + (mode != "1")]:
        pixels = np.asarray(decode(encoded(image, "TGA", compression=packed)))
        assert np.array_equal(pixels, np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("form", ["bmp", "png"])
def test_the_largest_picture_of_an_icon(form: str) -> None:
    data = encoded(picture((64, 64)), "ICO", bitmap_format=form, sizes=[(16, 16), (64, 64)])
    assert np.array_equal(np.asarray(decode(data)), np.asarray(picture((64, 64))))


def test_an_icon_is_no_way_around_the_limit_of_pixels() -> None:
    for part in (png_header(20_000, 20_000), encoded(picture((2, 30_000)), "DIB")):
        entry = struct.pack("<BBBBHHII", 16, 16, 0, 0, 1, 24, len(part), 22)
        with pytest.raises(MediaError, match=r"20,000 x 20,000|icon of 2 x 15000"):
            decode(b"\0\0\1\0\1\0" + entry + part)


def test_variants_of_known_formats() -> None:
    same = [
        encoded(picture(), "TIFF", big_tiff=True),
        encoded(picture(), "JPEG2000", no_jp2=True),
        b"P3\n# words\n16 8\n255\n" + b" ".join(b"%d" % v for v in picture().tobytes()),
    ]
    for data in same:
        assert np.array_equal(np.asarray(decode(data)), np.asarray(picture()))
    other_brand = bytearray(encoded(picture(), "AVIF"))
    other_brand[8:12] = b"mif1"
    assert decode(bytes(other_brand)).size == (16, 8)


def test_a_portable_graymap_of_16_bits_is_scaled() -> None:
    ramp = np.linspace(0, 65535, 256, dtype=np.uint16).reshape(16, 16)
    pixels = np.asarray(decode(b"P5 16 16 65535\n" + ramp.astype(">u2").tobytes()))
    assert np.array_equal(pixels[..., 0], ramp >> 8)


def test_a_bitmap_that_is_slow_to_decode_is_bounded() -> None:
    with pytest.raises(MediaTooLarge, match="save it as PNG"):
        decode(b"P6 3000 3000 254\n" + bytes(3000 * 3000 * 3))


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB"])
def test_without_alpha_the_pixels_are_those_of_convert(mode: str) -> None:
    data = encoded(picture(mode=mode))
    with Image.open(io.BytesIO(data)) as plain:
        assert np.array_equal(np.asarray(decode(data)), np.asarray(plain.convert("RGB")))


@pytest.mark.parametrize(("mode", "fmt"), [("CMYK", "JPEG"), ("CMYK", "TIFF"), ("YCbCr", "JPEG")])
def test_other_colour_spaces(mode: str, fmt: str) -> None:
    image = Image.new("RGB", (16, 8), (200, 40, 40)).convert(mode)
    red, green, blue = decode(encoded(image, fmt)).resize((1, 1)).getpixel((0, 0))  # type: ignore[misc]
    assert abs(red - 200) < 12
    assert max(abs(green - 40), abs(blue - 40)) < 12


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    ramp = np.linspace(0, 65535, 256, dtype=np.uint16).reshape(16, 16)
    pixels = np.asarray(decode(encoded(Image.fromarray(ramp))))
    assert np.array_equal(pixels[..., 0], ramp >> 8)


@pytest.mark.parametrize(("kind", "said"), [(np.float32, "float"), (np.int32, "32-bit")])
def test_pixels_of_unknown_range_are_refused(kind: type[np.generic], said: str) -> None:
    with pytest.raises(MediaError, match=f"{said} pixels"):
        decode(encoded(Image.fromarray(np.zeros((8, 8), kind)), "TIFF"))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_alpha_is_laid_on_white(mode: str) -> None:
    image = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    image.paste((0, 0, 0, 255), (0, 0, 4, 8))
    pixels = np.asarray(decode(encoded(image.convert(mode))))
    assert pixels[:, :4].max() == 0
    assert pixels[:, 4:].min() == 255


def test_transparent_colour_of_a_palette() -> None:
    image = Image.new("P", (8, 8), 0)
    image.putpalette([0, 0, 0, 255, 0, 0])
    assert np.asarray(decode(encoded(image, transparency=0))).min() == 255


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("fmt", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_orientation_is_applied(turn: int, fmt: str) -> None:
    image = Image.new("RGB", (32, 16), "white")
    image.paste("black", (0, 0, 8, 8))
    exif = Image.Exif()
    exif[0x0112] = turn
    dark = np.asarray(decode(encoded(image, fmt, exif=exif)).convert("L")) < 128
    assert dark.shape == ((16, 32) if turn < 5 else (32, 16))
    rows, columns = dark.nonzero()
    top, left = rows.mean() < dark.shape[0] / 2, columns.mean() < dark.shape[1] / 2
    assert (top, left) == {
        1: (True, True), 2: (True, False), 3: (False, False), 4: (False, True),
        5: (True, True), 6: (True, False), 7: (False, False), 8: (False, True),
    }[turn]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_broken_metadata_do_not_spoil_a_picture() -> None:
    data = encoded(picture(), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff garbage")
    assert decode(data).size == (16, 8)


@pytest.mark.parametrize("fmt", ["GIF", "WEBP", "PNG"])
def test_first_frame_of_an_animation(fmt: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    data = encoded(frames[0], fmt, save_all=True, append_images=frames[1:], lossless=True)
    assert decode(data).getpixel((4, 4)) == pytest.approx((255, 0, 0), abs=3)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_truncated(fmt: str, part: float) -> None:
    data = encoded(picture((256, 256)), fmt)
    with pytest.raises(MediaError, match=r"^cat\.png ") as caught:
        decode(data[: int(len(data) * part)])
    assert caught.value.code == "media_invalid"


def test_flipped_bytes_never_escape_the_error_tree() -> None:
    rng = np.random.default_rng(3)
    for fmt in FORMATS:
        if fmt == "AVIF":  # its decoder takes long over some broken files
            continue
        data = np.frombuffer(encoded(picture((64, 64)), fmt), np.uint8)
        for _ in range(40):
            broken = data.copy()
            broken[rng.integers(12, len(data), 8)] = rng.integers(0, 256, 8)
            with suppress(MediaError):
                decode(broken.tobytes())


@pytest.mark.parametrize(
    "data",
    [
        b"this is text, whatever its name says\n",
        b"\x89PNG",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%!PS-Adobe-3.0 EPSF-3.0\n",
        b"%PDF-1.7\n",
        b"\0" * 100,
        b"qoif" + b"\0" * 100,
        b"\0\0\2\0\1\0" + b"\x10" * 100,
        b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + b"\0" * 100,
        bytes(range(256)) * 4,
    ],
)
def test_not_an_image(data: bytes) -> None:
    with pytest.raises(MediaError, match="not an image of a known format"):
        decode(data)


def test_one_pixel_is_too_small() -> None:
    with pytest.raises(MediaTooSmall, match=r"cat\.png has 1 x 1 pixels; .* at least 4"):
        decode(encoded(picture((1, 1))))


def test_one_thin_side_is_too_small() -> None:
    with pytest.raises(MediaTooSmall):
        decode(encoded(picture((64, 3))))


def test_bomb_is_refused_by_its_header() -> None:
    with pytest.raises(MediaTooLarge, match="20,000 x 20,000"):
        decode(png_header(20_000, 20_000))


def test_between_pillows_warning_and_our_limit() -> None:
    data = png_header(10_000, 9_500)
    assert decode(data, MediaPolicy(max_pixels=95_000_000)).size == (10_000, 9_500)


def test_gif_frame_larger_than_its_screen() -> None:
    data = bytearray(encoded(picture((8, 8)), "GIF"))
    at = data.index(b",\0\0\0\0\x08\0\x08\0")
    data[at + 5 : at + 9] = struct.pack("<HH", 65_535, 65_535)
    with pytest.raises(MediaTooLarge):
        decode(bytes(data))


def test_text_chunk_bomb() -> None:
    bomb = zlib.compress(bytes(200_000_000), 9)
    body = b"Comment\0\0" + bomb
    chunk = (
        struct.pack(">I", len(body))
        + b"zTXt"
        + body
        + struct.pack(">I", zlib.crc32(b"zTXt" + body))
    )
    plain = encoded(picture())
    data = plain[:33] + chunk + plain[33:]
    assert without_notes(data) == plain  # what is not read is not unpacked
    assert decode(data).tobytes() == decode(plain).tobytes()
