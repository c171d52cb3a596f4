"""What is private in JAX, which one module holds: a JAX that renames it fails here."""

import inspect
import re
from pathlib import Path

import pytest
from jax._src import distributed, xla_bridge
from jaxlib import _jax

import hookline
from hookline.coordination import service


def test_the_client_has_what_the_board_calls():
    client = _jax.DistributedRuntimeClient
    for name in ("key_value_set", "blocking_key_value_get", "key_value_delete"):
        assert callable(getattr(client, name)), f"JAX has renamed {name}: see hookline/coordination/service.py"
    for name in ("client", "process_id", "num_processes", "coordinator_address"):
        assert hasattr(distributed.global_state, name), f"JAX has renamed {name}: see hookline/coordination/service.py"


def test_gloo_takes_the_host_that_it_listens_on():
    assert xla_bridge._jax is _jax
    told = "JAX has renamed make_gloo_tcp_collectives, or its hostname: see hookline/coordination/service.py"
    assert "make_gloo_tcp_collectives(" in inspect.getsource(xla_bridge.make_cpu_client), told
    assert "hostname: str" in (_jax.make_gloo_tcp_collectives.__doc__ or ""), told


def test_the_start_of_a_backend_holds_a_lock():
    told = "JAX has renamed _backend_lock: see hookline/coordination/service.py"
    assert "with _backend_lock:" in inspect.getsource(xla_bridge.backends), told
    assert not service.is_starting_devices()
    with xla_bridge._backend_lock:
        assert service.is_starting_devices(), told


@pytest.mark.parametrize("found", [None, lambda distributed_client: distributed_client])
def test_a_jax_whose_gloo_takes_no_host_listens_as_before_and_says_so(monkeypatch, caplog, found):
    monkeypatch.setattr(_jax, "make_gloo_tcp_collectives", found)
    service.keep_gloo_on("127.0.0.1")
    if found is not None:
        assert _jax.make_gloo_tcp_collectives(distributed_client=3) == 3
    assert [record.message for record in caplog.records] == [
        "Gloo listens on the address of this machine's name: hookline knows no other way in this JAX."
    ]


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
