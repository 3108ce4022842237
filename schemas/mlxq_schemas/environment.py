"""The variables ``MLXQ_*`` that mean something, and those that look like it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Final

from mlxq_schemas.near import near
from mlxq_schemas.plain import whole

PREFIX: Final = "MLXQ_"
_SETTINGS: Final = """
    redis_url queue model model_name trust_remote_code max_rows prefill_step max_cache_bytes kv_bits
    kv_group_size kv_start prefix_cache_bytes feature_cache_bytes input_cache_bytes cache_dir
    cache_dir_bytes cache_dir_bits cache_write_budget cache_ssd_only cache_shared look_ahead
    max_attempts retry_delay lease grace result_ttl dead_ttl name media_root allow_http
    allow_private_hosts max_media_bytes max_image_pixels min_image_side prepare_threads dtype device
    log_level log_json burst max_jobs
"""
"""Options of a worker, each of which is a variable too."""
_OTHERS: Final = ("tick", "require_servers", "write_screens")
"""Set for commands of ``mlxq cron``, and read by the project's own tests."""
KNOWN: Final = frozenset(PREFIX + name.upper() for name in (*_SETTINGS.split(), *_OTHERS))
_TESTS: Final = "MLXQ_TEST_"


def unknown_variables(environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """A line about each ``MLXQ_`` variable that sets nothing."""
    for name in sorted(os.environ if environment is None else environment):
        if not name.startswith(PREFIX) or name.startswith(_TESTS) or name in KNOWN:
            continue
        meant = near(name, KNOWN)
        rest = "sets nothing" if meant is None else f"did you mean {meant}?"
        yield whole(f"{name} is unknown: {rest}")
