"""`make test` makes XLA compile quickly; another process compiles tests of rounding as for users."""

import os
from pathlib import Path

import pytest
from tests import python

# The others that are marked run in `make test-all`.
FILES = ["tests/session/test_guards.py"]
COMPILES_QUICKLY = "JAX_DISABLE_MOST_OPTIMIZATIONS"


@pytest.mark.skipif(COMPILES_QUICKLY not in os.environ, reason="all is compiled as for users")
def test_rounding_tests_pass_with_full_optimization():
    env = {name: value for name, value in os.environ.items() if name != COMPILES_QUICKLY}
    asked = python.run("-c", "import jax; print(jax.config.values['jax_disable_most_optimizations'])", env=env)
    assert asked.stdout in ("None\n", "False\n")
    marked = "rounding and not campaign"
    done = python.run("-m", "pytest", "-p", "no:xdist", "-m", marked, *FILES, env=env, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
