from __future__ import annotations

import jax.numpy as jnp
import optax
import pytest
from tests.stand_ins import DirectTransport

import hookline as hl
from hookline.distributed import ParameterServer

# The rule alone, for any sizes.
from hookline.distributed.worker.server_assignment import assign_servers
from hookline.extend import Update

from .targets import Target


def placed(servers, variables=None, **options):
    graph = hl.get_default_graph()
    updates = [operation for operation in graph.get_operations() if isinstance(operation, Update)]
    variables = graph.get_collection(hl.GraphKeys.GLOBAL_VARIABLES) if variables is None else variables
    return assign_servers(variables, updates, servers, global_step=hl.train.get_global_step(), **options)


def test_large_variables_are_distributed_and_the_global_step_is_on_the_first_server():
    for name in ("a", "b", "c", "d"):
        hl.Variable(jnp.zeros(1000), name=name)
    hl.train.create_global_step()

    homes = placed(2)

    assert homes["global_step"] == 0
    assert sorted(homes[name] for name in "abcd") == [0, 0, 1, 1]


def test_variable_is_on_the_server_of_its_optimizer_state():
    weights = [hl.Variable(jnp.zeros(n), name=f"w{n}") for n in (30, 20, 10)]
    loss = hl.op(lambda *w: sum(jnp.sum(x**2) for x in w))(*weights)
    hl.train.Optimizer(optax.adam(0.1)).minimize(loss, global_step=hl.train.create_global_step())

    homes = placed(3)

    assert len(set(homes.values())) == 3
    for n in (30, 20, 10):
        assert homes[f"w{n}"] == homes[f"optimizer/w{n}"]


def test_variable_updated_after_another_is_on_the_same_server():
    w, average = hl.Variable(jnp.zeros(8), name="w"), hl.Variable(jnp.zeros(9), name="average")
    hl.Variable(jnp.zeros(8), name="other")
    with hl.control_dependencies([w.assign_add(jnp.ones(8))]):
        hl.update(average, lambda old, new: old.at[:8].add(new), w)

    homes = placed(2)

    assert homes["w"] == homes["average"] != homes["other"]


def test_most_specific_name_prefix_hint_counts():
    for name in ("net/a", "net/deep/b", "network"):
        hl.Variable(jnp.zeros(2), name=name)

    assert placed(3, hints={"net": 1, "net/deep": 2}) == {"net/a": 1, "net/deep/b": 2, "network": 0}


def test_hint_that_splits_an_update_names_both_variables():
    a, b = hl.Variable(0.0, name="a"), hl.Variable(0.0, name="b")
    hl.update((a, b), lambda values: values)

    with pytest.raises(ValueError, match=r"'a' \(server 0\) and 'b' \(server 1\)"):
        placed(2, hints={"a": 0, "b": 1})


def test_hint_of_a_missing_server_is_an_error():
    hl.Variable(0.0, name="a")

    with pytest.raises(ValueError, match="server 2, but there are 2"):
        placed(2, hints={"a": 2})


def test_assigned_variable_keeps_its_server():
    old, new = hl.Variable(jnp.zeros(1), name="old"), hl.Variable(jnp.zeros(9), name="new")

    assert placed(2, [old, new], placed={"old": 1}) == {"old": 1, "new": 0}


def test_hint_for_no_variable_gives_a_warning(caplog):
    v = hl.Variable(1.0, name="embedding/table")
    transport = DirectTransport([ParameterServer(), ParameterServer()])

    session = hl.Session(Target(transport, placement={"embeding": 1, "embedding": 1}))
    session.run(hl.global_variables_initializer())

    (warning,) = [record.getMessage() for record in caplog.records if "placement" in record.getMessage()]
    assert warning == "The hint placement['embeding'] has no effect: no shared variable has this name or prefix."
    assert float(session.run(v)) == 1
    assert transport.servers[1].status().initialized == {"embedding/table"}
