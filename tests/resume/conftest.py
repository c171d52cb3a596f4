"""What the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache


@pytest.fixture(scope="package", autouse=True)
def programs_are_compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Sessions that run the same program take it from JAX's cache, as jobs that are started again may."""
    wanted = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("programs")),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in wanted}
    for settings in (wanted, before):
        for name, value in settings.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()  # It looks at the settings once.
        if settings is wanted:
            yield
