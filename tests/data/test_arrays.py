from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hookline as hl


def test_batches_come_in_the_order_of_the_arrays():
    batches = list(hl.data.from_arrays({"x": np.arange(5), "y": (np.arange(10).reshape(5, 2),)}, 2))
    assert [batch["x"].tolist() for batch in batches] == [[0, 1], [2, 3], [4]]
    assert batches[2]["y"][0].tolist() == [[8, 9]]


def test_batch_size_may_be_a_whole_float_as_last_step():
    assert [batch.tolist() for batch in hl.data.from_arrays(np.arange(5), 3.0)] == [[0, 1, 2], [3, 4]]


def test_shuffling_gives_each_epoch_its_own_order_of_the_same_examples():
    batches = list(hl.data.from_arrays(np.arange(50), 50, shuffle_seed=3, epochs=2))
    first, second = (batch.tolist() for batch in batches)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert first != list(range(50))


def test_order_depends_on_the_seed():
    orders = [[b.tolist() for b in hl.data.from_arrays(np.arange(20), 3, shuffle_seed=seed)] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


def test_epochs_none_is_endless():
    source = iter(hl.data.from_arrays(np.arange(2), 2, epochs=None))
    assert [next(source).tolist() for _ in range(100)] == [[0, 1]] * 100


@given(
    n=st.integers(1, 12),
    size=st.integers(1, 5),
    seed=st.none() | st.integers(0, 5),
    epochs=st.integers(0, 3),
    used=st.integers(0, 40),
)
def test_state_restores_the_position_of_another_iterator(n, size, seed, epochs, used):
    source = hl.data.from_arrays(np.arange(n), size, shuffle_seed=seed, epochs=epochs)
    one = iter(source)
    for _ in range(used):
        next(one, None)
    other = iter(source)
    other.set_state(one.get_state())
    assert [batch.tolist() for batch in other] == [batch.tolist() for batch in one]


def test_state_of_other_examples_is_refused():
    state = iter(hl.data.from_arrays(np.arange(5), 2)).get_state()
    with pytest.raises(ValueError, match="examples"):
        iter(hl.data.from_arrays(np.arange(6), 2)).set_state(state)


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        (({"x": np.arange(3), "y": np.arange(4)}, 2), ValueError, "the same number of examples"),
        ((np.zeros((0, 3)), 2), ValueError, "at least one, got"),
        (({}, 2), ValueError, "from_arrays requires arrays"),
        ((np.float32(1), 2), ValueError, "at least one, got"),
        ((np.arange(3), 0), ValueError, "batch_size"),
        ((np.arange(3), "2"), TypeError, "batch_size"),
        ((np.arange(3), 2.5), TypeError, "batch_size"),
        ((np.arange(3), 2, -1), ValueError, "shuffle_seed"),
        ((np.arange(3), 2, None, -1), ValueError, "epochs"),
    ],
)
def test_wrong_arguments_are_refused_at_the_call(arguments, kind, said):
    with pytest.raises(kind, match=said):
        hl.data.from_arrays(*arguments)
