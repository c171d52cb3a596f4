"""Training scripts that shard a model over a mesh are trained by a `Loop` as they are by hand."""

from __future__ import annotations

import json

import pytest

from .devices import run

pytestmark = pytest.mark.campaign

SCRIPTS = [
    *(
        f"{script}, {given}"
        for script in ("boxes", "shards", "objects", "references")
        for given in ("value", "function")
    ),
    "modules, value",
]


@pytest.fixture(scope="module")
def found(tmp_path_factory, environment):
    """The results of each script, by hand and in a loop."""
    directory = tmp_path_factory.mktemp("moved")
    return json.loads(run(4, ["-m", "tests.loop.moved", str(directory)], environment()).stdout)


@pytest.mark.parametrize("script", SCRIPTS)
def test_losses_equal_those_of_the_manual_loop(script, found):
    hand, whole = found[script]["hand"], found[script]["whole"]
    assert whole["losses"] == pytest.approx(hand["losses"], rel=1e-6)
    assert whole["devices"] == hand["devices"] == 4


@pytest.mark.parametrize("script", SCRIPTS)
def test_each_part_of_the_state_has_the_size_in_the_manual_loop(script, found):
    hand, whole = found[script]["hand"]["parts"], found[script]["whole"]["parts"]
    if script.startswith("objects"):  # By hand XLA splits the weights that cannot be split as they ask.
        assert sorted(set(hand) - set(whole)) == ["(8, 1)"]
    else:
        assert whole == hand


@pytest.mark.parametrize("script", SCRIPTS)
def test_resumed_training_has_the_same_bits_and_shardings(script, found):
    assert found[script]["resumed"] == found[script]["whole"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_training_compiles_two_programs(script, found):
    assert found[script]["programs"] == 2, "one that makes the state, and the step"
