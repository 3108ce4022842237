"""Which formats are decoded, and how each is known: by its bytes, never by its name.

Of what Pillow reads these are the ones whose size stands in the header, so that a bomb is refused
before it is unpacked. Left out is what runs a program (EPS), draws
by instructions (WMF), is a stub (GRIB, HDF5), or unpacks few bytes into many pixels with Python
code (DDS, QOI).
The producer looks for files of these formats: ``PICTURES`` in
``mlxq_producer.pipeline.pictures`` names their suffixes.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Final

from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile, DibImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.IcoImagePlugin import IcoFile, IcoImageFile
from PIL.ImageFile import ImageFile
from PIL.Jpeg2KImagePlugin import Jpeg2KImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PcxImagePlugin import PcxImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.PsdImagePlugin import PsdImageFile
from PIL.SgiImagePlugin import SgiImageFile
from PIL.SunImagePlugin import SunImageFile
from PIL.TgaImagePlugin import TgaImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from mlxq_schemas.errors import MediaError, MediaTooLarge

Reader = Callable[[io.BytesIO], ImageFile]

PNG: Final = b"\x89PNG\r\n\x1a\n"
_NOTES: Final = (b"tEXt", b"zTXt", b"iTXt", b"iCCP")
ICON_SIDE: Final = 256
"""Pixels; a side of an icon is written in one byte."""
SLOW_PIXELS: Final = 4_000_000
"""Pixels of a PPM that Python code may decode, a second or so for each million."""


def open_image(data: bytes, what: str) -> ImageFile:
    """Read the header; ``what`` names the input in errors. Raises :class:`MediaError`, and what a
    decoder raises.

    ``Image.open`` is not used: its pixel limit is a setting of the process.
    """
    for known, reader in READERS:
        if known(data):
            return reader(io.BytesIO(data))
    raise MediaError(f"{what} is not an image of a known format ({NAMES})")


def _starts(*magic: bytes, at: int = 0) -> Callable[[bytes], bool]:
    return lambda data: data[at : at + max(map(len, magic))].startswith(magic)


def _is_avif(data: bytes) -> bool:
    """An ISO file that names AVIF among its brands, as its first one or later."""
    end = min(int.from_bytes(data[:4]), 256)
    brands = {data[at : at + 4] for at in (8, *range(16, end, 4))}
    return data[4:8] == b"ftyp" and not brands.isdisjoint({b"avif", b"avis"})


def _is_ppm(data: bytes) -> bool:
    return data[:1] == b"P" and data[1:2] in b"123456" and data[2:3].isspace()


def _is_pcx(data: bytes) -> bool:
    return data[:1] == b"\n" and data[1:2] in b"\0\2\3\5" and data[2:3] == b"\1"


def _is_dib(data: bytes) -> bool:
    """A bitmap without its file header: the length of its own, and one plane."""
    return data[:4] in {b"\x28\0\0\0", b"\x6c\0\0\0", b"\x7c\0\0\0"} and data[12:14] == b"\1\0"


def _is_tga(data: bytes) -> bool:
    """TGA has no magic: all that its header may say must agree."""
    if len(data) < 18:
        return False
    coloured, kind, depth, flags = data[1], data[2], data[16], data[17]
    sides = int.from_bytes(data[12:14], "little"), int.from_bytes(data[14:16], "little")
    depths = {1: {8, 16}, 2: {16, 24, 32}, 3: {1, 8, 16}}.get(kind & 7, set[int]())
    table = data[3:8]
    if coloured:
        table_agrees = coloured == 1 and data[7] in {15, 16, 24, 32} and any(data[5:7])
    else:
        table_agrees = kind & 7 != 1 and table == bytes(5)
    return (
        kind in {1, 2, 3, 9, 10, 11}
        and depth in depths
        and all(sides)
        and (table_agrees and not flags & 0xC0)
    )


def _open_png(file: io.BytesIO) -> ImageFile:
    return PngImageFile(io.BytesIO(without_notes(file.getvalue())))


def without_notes(data: bytes) -> bytes:
    """A PNG without its texts and its colour profile, which nobody reads here.

    Pillow unpacks them, and refuses the picture where they are large or broken.
    """
    if not any(kind in data for kind in _NOTES):
        return data
    kept, at = [data[:8]], 8
    while at + 8 <= len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4])
        if data[at + 4 : at + 8] not in _NOTES:
            kept.append(data[at:end])
        at = end
    return b"".join([*kept, data[at:]])


def _open_ppm(file: io.BytesIO) -> ImageFile:
    picture = PpmImageFile(file)
    width, height = picture.size
    if picture.tile[0].codec_name != "raw" and width * height > SLOW_PIXELS:
        raise MediaTooLarge(
            f"a PPM of {width:,} x {height:,} pixels as text, or with a maximum other than 255, "
            f"takes too long to decode; at most {SLOW_PIXELS:,} pixels are allowed: save it as PNG"
        )
    return picture


def _open_icon(file: io.BytesIO) -> ImageFile:
    """The largest picture of an icon: Pillow would unpack it before anybody knows its size."""
    icon = IcoFile(file).entry[0]
    part = file.getvalue()[icon.offset : icon.offset + icon.size]
    if part[:8] == PNG:
        return _open_png(io.BytesIO(part))
    width, height = DibImageFile(io.BytesIO(part)).size
    if width > ICON_SIDE or height > 2 * ICON_SIDE:  # the mask is in the same bitmap, below it
        raise OSError(f"an icon of {width} x {height // 2} pixels")
    file.seek(0)
    return IcoImageFile(file)


READERS: Final[tuple[tuple[Callable[[bytes], bool], Reader], ...]] = (
    (_starts(PNG), _open_png),
    (_starts(b"\xff\xd8\xff"), JpegImageFile),
    (_starts(b"GIF87a", b"GIF89a"), GifImageFile),
    (_starts(b"WEBP", at=8), WebPImageFile),
    (_starts(b"BM"), BmpImageFile),
    (_starts(b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), TiffImageFile),
    (_is_avif, AvifImageFile),
    (_starts(b"\0\0\0\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51"), Jpeg2KImageFile),
    (_starts(b"8BPS"), PsdImageFile),
    (_starts(b"\0\0\1\0"), _open_icon),
    (_starts(b"\x01\xda"), SgiImageFile),
    (_starts(b"\x59\xa6\x6a\x95"), SunImageFile),
    (_is_ppm, _open_ppm),
    (_is_pcx, PcxImageFile),
    (_is_dib, DibImageFile),
    (_is_tga, TgaImageFile),
)
"""How a format is known, the surest first, and what reads it."""

NAMES: Final = "PNG, JPEG, WEBP, GIF, BMP, TIFF, AVIF, JPEG 2000, PSD, ICO, TGA, PCX, PPM, SGI, SUN"
