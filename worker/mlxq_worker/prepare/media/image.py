"""From bytes to pixels, trusting nothing that the bytes say about themselves."""

from __future__ import annotations

from typing import Final

import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import TiffImageFile

from mlxq_schemas.errors import MediaError, MediaTooLarge, MediaTooSmall
from mlxq_worker.prepare.media.formats import open_image
from mlxq_worker.prepare.media.policy import MediaPolicy

ORIENTATION: Final = 0x0112
TURNS: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode_image(data: bytes, what: str, policy: MediaPolicy) -> Image.Image:
    """The picture in ``data``, RGB, upright, fully decoded and owned by the caller.

    Of an animation it is the first frame. Alpha is laid on white, since a plain conversion shows
    the colours hidden below transparent pixels, mostly black; without alpha the pixels are those
    of ``convert("RGB")``. ``what`` names the input in errors. Raises :class:`MediaError`,
    :class:`MediaTooLarge` or :class:`MediaTooSmall`.
    """
    try:
        with open_image(data, what) as file:
            _check_size(file.size, what, policy)
            turn = TURNS.get(_orientation(file))
            file.load()
            picture = _to_rgb(file, what)
    except MediaError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise MediaTooLarge(f"{what} has too many pixels: {error}") from error
    except Exception as error:  # decoders raise anything at all on broken bytes
        raise MediaError(f"{what} is broken: {_reason(error)}") from error
    picture.info = {}  # metadata would keep megabytes alive
    return picture if turn is None else picture.transpose(turn)


def _check_size(size: tuple[int, int], what: str, policy: MediaPolicy) -> None:
    width, height = size
    if width * height > policy.max_pixels:
        raise MediaTooLarge(
            f"{what} has {width:,} x {height:,} pixels; at most {policy.max_pixels:,} are allowed"
        )
    if min(width, height) < policy.min_side:
        raise MediaTooSmall(
            f"{what} has {width} x {height} pixels; each side needs at least {policy.min_side}"
        )


def _orientation(file: ImageFile) -> int:
    # Broken metadata do not make a picture unreadable. (Pillow turns TIFFs itself.)
    try:
        return 1 if isinstance(file, TiffImageFile) else int(file.getexif().get(ORIENTATION, 1))
    except Exception:  # noqa: BLE001 - what decoders raise has no common root
        return 1


def _to_rgb(file: Image.Image, what: str) -> Image.Image:
    """A new RGB image."""
    if file.mode.startswith("I;16"):  # 16 bits a pixel: `convert` would clip instead of scale
        pixels = np.asarray(file).astype(np.int64) >> 8
        return Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).convert("RGB")
    if file.mode == "I" and isinstance(file, PpmImageFile):  # 16 bits, whatever they were before
        return Image.fromarray((np.asarray(file) >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    if file.mode in {"I", "F"}:
        kind = "float" if file.mode == "F" else "32-bit"
        raise MediaError(f"{what} has {kind} pixels, whose range is unknown: save it with 8 bits")
    if file.has_transparency_data:
        picture = file.convert("RGBA")
        ground = Image.new("RGBA", picture.size, "white")
        ground.alpha_composite(picture)
        return ground.convert("RGB")
    return file.convert("RGB")


def _reason(error: Exception) -> str:
    """What a decoder said, in one line; its objects and addresses stay inside."""
    if isinstance(error, UnidentifiedImageError) or not str(error):
        return type(error).__name__
    return " ".join(str(error).split())[:160]
