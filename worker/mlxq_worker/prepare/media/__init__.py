"""The media gate: every medium of a job passes here before anything else touches it.

No MLX; everything may be called from many threads at once.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from PIL.Image import Image

from mlxq_schemas import MediaRef
from mlxq_worker.prepare.media.image import decode_image
from mlxq_worker.prepare.media.naming import called
from mlxq_worker.prepare.media.policy import MediaPolicy
from mlxq_worker.prepare.media.source import BlobReader, read_source

__all__ = ["BlobReader", "LoadedImage", "MediaPolicy", "decode_image", "load_image", "read_source"]


@dataclass(frozen=True)
class LoadedImage:
    """A decoded RGB image, and the hex sha256 of the bytes it came from."""

    image: Image
    sha256: str


def load_image(ref: MediaRef, policy: MediaPolicy, read_blob: BlobReader) -> LoadedImage:
    """Fetch, check and decode one image. Raises :class:`~mlxq_schemas.errors.MediaError`."""
    data = read_source(ref, policy, read_blob)
    image = decode_image(data, called(ref), policy)
    return LoadedImage(image, hashlib.sha256(data).hexdigest())
