"""What is private in JAX, which one module holds: a JAX that renames it fails here."""

import re
from pathlib import Path

from jax._src import distributed
from jaxlib import _jax

import hookline
from hookline.coordination import service


def test_the_client_has_what_the_board_calls():
    client = _jax.DistributedRuntimeClient
    for name in ("key_value_set", "blocking_key_value_get", "key_value_delete"):
        assert callable(getattr(client, name)), f"JAX has renamed {name}: see hookline/coordination/service.py"
    for name in ("client", "process_id", "num_processes", "coordinator_address"):
        assert hasattr(distributed.global_state, name), f"JAX has renamed {name}: see hookline/coordination/service.py"


def test_no_other_module_imports_it():
    modules = Path(hookline.__file__).parent.rglob("*.py")
    users = [path.name for path in modules if re.search(r"from jax\._src import .*\bdistributed\b", path.read_text())]
    assert users == ["service.py"]


def test_the_cause_of_an_error_is_looked_for_once_though_two_errors_name_each_other():
    first, second = KeyError("a"), ValueError("b")
    first.__cause__, second.__context__ = second, first
    assert not service.is_loss(first)
    second.args = ("[Gloo] Connection closed by peer",)
    assert service.is_loss(first)
