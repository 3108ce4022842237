"""Make the backend that a worker computes with, from its configuration."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx

from mlxq_worker.backend import Backend
from mlxq_worker.cache.caches import LAYOUT
from mlxq_worker.cache.disk import DiskTier
from mlxq_worker.cache.packing import Packing
from mlxq_worker.config import WorkerConfig
from mlxq_worker.engine.generator import BatchGenerator
from mlxq_worker.models.device import loading
from mlxq_worker.models.load import LoadedModel, load_model
from mlxq_worker.models.placement import place
from mlxq_worker.models.quantised import Quantisation
from mlxq_worker.prepare.media import MediaPolicy
from mlxq_worker.prepare.preparer import Preparer


def build_backend(config: WorkerConfig, *, write_at: int = 2) -> Backend:
    """Load the model in the calling thread, which then owns all MLX work.

    ``write_at``: what was seen so often goes to ``cache_dir``.
    Raises :class:`~mlxq_schemas.errors.ModelNotLoaded`, also where memory is too small for the
    model, :class:`~mlxq_schemas.errors.ConfigError` for a device that is not there, and
    :class:`~mlxq_schemas.errors.DeviceFailed`.
    """
    place(config.device)
    with loading(config.model or "the bundled model"):
        backend = _build(config, write_at)
        mx.synchronize()  # what loading has queued must not fail in the first job
    return backend


def _build(config: WorkerConfig, write_at: int) -> Backend:
    loaded = load_model(config.model, config.dtype, trust_remote_code=config.trust_remote_code)
    policy = MediaPolicy(
        roots=tuple(Path(root) for root in config.media_roots),
        allow_http=config.allow_http,
        allow_private_hosts=config.allow_private_hosts,
        max_bytes=config.max_media_bytes,
        max_pixels=config.max_image_pixels,
        min_side=config.min_image_side,
    )
    quantisation = _quantisation(config)
    packing = Packing(config.cache_dir_bits) if config.cache_dir and config.cache_dir_bits else None
    lossy = (how.label for how in (quantisation, packing) if how is not None)
    identity = "-".join([loaded.identity, *lossy])
    generator = BatchGenerator(
        loaded.model,
        loaded.processor,
        max_rows=config.max_rows,
        prefill_step=config.prefill_step,
        max_cache_bytes=config.max_cache_bytes,
        prefix_cache_bytes=config.prefix_cache_bytes,
        feature_cache_bytes=config.feature_cache_bytes,
        quantisation=quantisation,
        identity=loaded.content,
        disk=_disk(config, write_at),
        ssd_only=config.cache_ssd_only,
        packing=packing,
        eos=loaded.eos,
        context=loaded.context,
    )
    return Backend(
        generator=generator,
        prepare=Preparer(
            loaded.processor,
            policy,
            loaded.context,
            config.input_cache_bytes,
            generator.vocabulary,
        ),
        names=_names(loaded, identity, config.model_name),
        identity=identity,
        max_rows=config.max_rows,
    )


def _quantisation(config: WorkerConfig) -> Quantisation | None:
    if config.kv_bits is None:
        return None
    return Quantisation(config.kv_bits, config.kv_group_size, config.kv_start)


def _disk(config: WorkerConfig, write_at: int) -> DiskTier | None:
    if config.cache_dir is None:
        return None
    return DiskTier(
        config.cache_dir,
        max_bytes=config.cache_dir_bytes,
        layout=LAYOUT,
        write_budget=config.cache_write_budget,
        admit_at=write_at,
        shared=config.cache_shared,
    )


def _names(loaded: LoadedModel, identity: str, extra: str | None) -> frozenset[str]:
    """What a job's ``model`` may say: the name as given, its last part, the identity, the alias."""
    names = {loaded.name, loaded.path.name, loaded.name.rsplit("/", 1)[-1], identity}
    if extra:
        names.add(extra)
    return frozenset(names)
