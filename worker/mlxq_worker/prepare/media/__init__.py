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

__all__ = [
    "BlobReader",
    "FetchedImage",
    "MediaPolicy",
    "decode_image",
    "fetch_image",
    "read_source",
]


@dataclass(frozen=True)
class FetchedImage:
    """An image's bytes and their hex sha256; ``name`` is how messages call it."""

    data: bytes
    sha256: str
    name: str

    def decode(self, policy: MediaPolicy) -> Image:
        """Check it and decode it to RGB. Raises :class:`~mlxq_schemas.errors.MediaError`."""
        return decode_image(self.data, self.name, policy)


def fetch_image(ref: MediaRef, policy: MediaPolicy, read_blob: BlobReader) -> FetchedImage:
    """The bytes of one image. Raises :class:`~mlxq_schemas.errors.MediaError`."""
    data = read_source(ref, policy, read_blob)
    return FetchedImage(data, hashlib.sha256(data).hexdigest(), called(ref))
