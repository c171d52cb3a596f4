"""Names of JAX that are private, or differ between versions: a JAX that renames one fails here, with a sentence."""

import functools
import inspect
import re
import sys
import threading
from pathlib import Path

import jax
import jax.extend
import jax.numpy as jnp
import pytest
from jax._src import distributed, xla_bridge
from jaxlib import _jax

import hookline

# The module for private names of JAX.
from hookline import jax_internals

RENAMED = "JAX has renamed {}: see hookline/jax_internals.py"


@pytest.mark.parametrize("name", ["key_value_set", "blocking_key_value_get", "key_value_delete"])
def test_distributed_client_has_the_methods_of_the_key_value_store(name):
    assert callable(getattr(_jax.DistributedRuntimeClient, name, None)), RENAMED.format(name)


@pytest.mark.parametrize("name", ["client", "process_id", "num_processes", "coordinator_address"])
def test_distributed_state_has_the_attributes_read(name):
    assert hasattr(jax_internals.distributed_state(), name), RENAMED.format(name)
    assert jax_internals.distributed_state() is distributed.global_state


def test_gloo_takes_the_host_to_listen_on():
    told = RENAMED.format("make_gloo_tcp_collectives, or its hostname")
    assert xla_bridge._jax is _jax, told
    assert "make_gloo_tcp_collectives(" in inspect.getsource(xla_bridge.make_cpu_client), told
    assert "hostname: str" in (_jax.make_gloo_tcp_collectives.__doc__ or ""), told


def test_start_of_a_backend_holds_a_lock():
    told = RENAMED.format("_backend_lock")
    assert "with _backend_lock:" in inspect.getsource(xla_bridge.backends), told
    assert not jax_internals.is_starting_backend()
    with xla_bridge._backend_lock:
        assert jax_internals.is_starting_backend(), told


def test_process_that_has_computed_has_devices_in_use():
    jnp.zeros(()).block_until_ready()
    assert jax_internals.has_started_backend(), RENAMED.format("backends_are_initialized")


def test_scan_equation_has_its_carry_counts():
    def scan(factor, offset, carried, rows):
        step = lambda carry, row: ({"a": carry["a"] * factor + offset, "b": carry["b"] + 1}, row)  # noqa: E731
        return jax.lax.scan(step, carried, rows)

    traced = jax.make_jaxpr(scan)(2.0, 3.0, {"a": 1.0, "b": 0}, jnp.ones((4, 1)))
    (equation,) = [equation for equation in traced.eqns if equation.primitive.name == "scan"]
    assert jax_internals.scan_counts(equation.params) == (2, 2), RENAMED.format("the parameters of a scan")


@pytest.mark.parametrize(
    ("function", "name", "params"),
    [
        (lambda x: jax.lax.cond(x > 0, jnp.sin, jnp.cos, x), "cond", ["branches"]),
        (lambda x: jax.lax.scan(lambda carry, _: (carry + x, None), x, length=2), "scan", ["jaxpr"]),
        (
            lambda x: jax.lax.while_loop(lambda y: y < x, lambda y: y + x, x),
            "while",
            ["cond_nconsts", "body_nconsts", "cond_jaxpr", "body_jaxpr"],
        ),
        (lambda x: jax.jit(jnp.sin)(x), "jit", ["jaxpr"]),
    ],
)
def test_parameters_of_equations_with_bodies_have_their_names(function, name, params):
    found = {equation.primitive.name: equation.params for equation in jax.make_jaxpr(function)(1.0).eqns}
    told = "JAX has renamed {}: see hookline/session/program/byproducts.py"
    assert name in found, told.format(name)
    for param in params:
        assert param in found[name], told.format(f"{param} of {name}")


def test_jaxpr_is_closed_over_its_constants():
    traced = jax.make_jaxpr(lambda x: x + jnp.arange(3.0))(1.0)
    told = RENAMED.format("ClosedJaxpr")
    assert isinstance(traced, jax_internals.ClosedJaxpr), told
    again = jax_internals.ClosedJaxpr(traced.jaxpr, traced.consts)
    assert jax.extend.core.jaxpr_as_fun(again)(1.0)[0].tolist() == [1, 2, 3], told


@pytest.mark.parametrize("place", [0, 1])
def test_lowered_program_has_its_kept_arguments(place):
    lowered = jax.jit(lambda *pair: 2 * pair[place]).lower(1.0, 2.0)
    said = "without it programs that use other arguments are taken to be equal, or none is shared"
    assert jax_internals.kept_argument_indices(lowered) == {place}, said


def test_function_of_pmap_is_recognised():
    told = RENAMED.format("the module of pmap")
    assert jax_internals.is_pmapped(jax.pmap(jnp.sin)), told
    assert jax_internals.is_pmapped(functools.partial(jax.pmap(jnp.sin), 1.0)), told
    assert not jax_internals.is_pmapped(jax.jit(jnp.sin)), told


@pytest.mark.parametrize("found", [None, lambda distributed_client: distributed_client])
def test_jax_whose_gloo_takes_no_host_listens_as_before_with_a_log_line(monkeypatch, caplog, found):
    monkeypatch.setattr(_jax, "make_gloo_tcp_collectives", found)
    jax_internals.bind_gloo_to("127.0.0.1")
    if found is not None:
        assert _jax.make_gloo_tcp_collectives(distributed_client=3) == 3
    assert [record.message for record in caplog.records] == [
        "Gloo listens on the address of this machine's name: this version of JAX allows no other."
    ]


def test_no_other_module_uses_private_names_of_jax():
    private = re.compile(r"(from|import) jax(lib|\._)|from jax import _|jax\.(_|lib\b)")
    modules = Path(hookline.__file__).parent.rglob("*.py")
    assert [path.name for path in modules if private.search(path.read_text())] == ["jax_internals.py"]


def test_stacks_show_whether_a_program_is_traced_lowered_compiled_or_calls_back():
    found = {"in the trace": [], "in the callback": []}

    def note(where):
        frame = inspect.currentframe()
        found[where].append((jax_internals.is_compiling(frame), jax_internals.is_in_callback(frame)))

    def traced(x):
        note("in the trace")
        jax.debug.callback(lambda: note("in the callback"))
        for _ in range(400):
            x = jnp.sin(x) @ x
        return x

    seen, is_done = set(), threading.Event()

    def watch(thread):
        while not is_done.wait(0.001):
            frame = sys._current_frames()[thread]
            if jax_internals.is_compiling(frame):
                seen.update(code.co_filename.rpartition("/")[2] for code in jax_internals._codes(frame))

    threading.Thread(target=watch, args=(threading.get_ident(),), daemon=True).start()
    jax.block_until_ready(jax.jit(traced)(jnp.ones((4, 4))))
    jax.effects_barrier()
    is_done.set()
    assert found == {"in the trace": [(True, False)], "in the callback": [(False, True)]}
    assert {"partial_eval.py", "mlir.py", "compiler.py"} <= seen, RENAMED.format("the functions that compile")
