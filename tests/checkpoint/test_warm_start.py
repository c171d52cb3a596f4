"""Models that begin with values of another training's checkpoint."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hookline as hl
from hookline import errors, train


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """A checkpoint of `s/u`, `w`, a state of several parts, a key, and an optimizer's opt_state."""
    with hl.Graph().as_default(), hl.Session() as sess:
        hl.Variable([5.0, 6.0], name="s/u")
        w = hl.Variable(1.0, name="w")
        hl.Variable({"params": {"dense": {"kernel": jnp.full((2, 3), 7.0)}}, "count": 4}, name="state", trainable=False)
        hl.Variable(lambda: jax.random.key(3), name="key", trainable=False)
        train.Optimizer(optax.adam(0.1)).minimize(w * w, global_step=train.get_or_create_global_step())
        sess.run(hl.global_variables_initializer())
        return train.Saver().save(sess, str(tmp_path_factory.mktemp("old") / "model.ckpt"), 10)


class Model:
    def __init__(self):
        self.u = hl.Variable([0.0, 0.0], name="n/u")
        self.x = hl.Variable(0.0, name="n/x")
        self.w = hl.Variable(-1.0, name="w")

    def values(self):
        with hl.Session() as sess:
            sess.run(hl.global_variables_initializer())
            return [np.asarray(value).tolist() for value in sess.run([self.u, self.x, self.w])]


@pytest.fixture
def model():
    return Model()


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (lambda m: {"s/u": m.u}, [[5, 6], 0, -1]),
        (lambda m: {"s/u": "n/u"}, [[5, 6], 0, -1]),
        (lambda m: {"s/u:0": "n/u:0"}, [[5, 6], 0, -1]),
        (lambda m: [("w", m.x), ("w", "w")], [[0, 0], 1, 1]),
        (lambda m: {"s/": "n/", "w": "n/x"}, [[5, 6], 1, -1]),
        (lambda m: {"w": "n/x", "s/": "n/"}, [[5, 6], 1, -1]),
        (lambda m: {"/": "/", "s/u": m.u, "w": m.x}, [[5, 6], 1, 1]),
        (lambda m: {}, [[0, 0], 0, -1]),
    ],
)
def test_assignment_map_takes_names_and_prefixes(model, pretrained, chosen, expected):
    train.init_from_checkpoint(pretrained, chosen(model))
    assert model.values() == expected


def test_directory_means_its_newest_checkpoint(model, pretrained):
    train.init_from_checkpoint(pretrained.rpartition("/")[0], {"w": model.w})
    assert model.values()[2] == 1


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (
            lambda m: {"zz": m.u, "yy": m.w},
            r"missing in the checkpoint: zz \(for n/u\)\n.*yy \(for w\)\n  only in.*key",
        ),
        (lambda m: {"s/": "n/"}, r"missing in the checkpoint: s/x \(for n/x\)"),
        (lambda m: {"s/u": m.x}, r"different: s/u \(for n/x\) has shape \(2,\) in the checkpoint, \(\) in the graph"),
        (lambda m: {"state/count": m.x}, r"state/count \(for n/x\) has dtype int32 in the checkpoint, float32 in the"),
        (lambda m: {"state": m.u}, r"missing in the checkpoint: state \(for n/u\)"),
        (lambda m: {"s/u": "n/uu"}, "no operation 'n/uu'. Did you mean 'n/u'"),
        (lambda m: {"s/": "zz/"}, "no global variable whose name begins with 'zz/'"),
        (lambda m: {"s/": "n/u"}, "requires for a prefix, which ends in a slash, another prefix.*got 's/' for 'n/u'"),
        (lambda m: {"s/u": "n/"}, "got 's/u' for 'n/'"),
        (lambda m: {"s/": m.u}, "got 's/' for 'n/u:0'"),
    ],
)
def test_each_error_names_the_mismatch(model, pretrained, chosen, said):
    with pytest.raises(ValueError, match=rf"(?s)init_from_checkpoint.*{said}"):
        train.init_from_checkpoint(pretrained, chosen(model))
    assert model.values() == [[0, 0], 0, -1], "nothing was changed"


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (lambda m: 3, "requires a dict"),
        (lambda m: "w", "requires a dict"),
        (lambda m: [3], "requires pairs"),
        (lambda m: {"w": 3}, "requires variables, got 3"),
        (lambda m: {"w": [m.w]}, "There are no partitioned variables"),
    ],
)
def test_invalid_assignment_map_is_refused(model, pretrained, chosen, said):
    with pytest.raises(TypeError, match=rf"init_from_checkpoint.*{said}"):
        train.init_from_checkpoint(pretrained, chosen(model))


def test_a_variable_of_another_graph_is_refused(model, pretrained):
    with hl.Graph().as_default(), pytest.raises(ValueError, match="'w' belongs to another graph"):
        train.init_from_checkpoint(pretrained, {"w": model.w})


def test_missing_checkpoint_is_an_error(model, tmp_path):
    for path in (str(tmp_path), str(tmp_path / "absent")):
        with pytest.raises(errors.NotFoundError, match="no (directory of )?checkpoint"):
            train.init_from_checkpoint(path, {"w": model.w})


def test_parts_of_variables_and_random_keys_are_restored(pretrained):
    with hl.Session() as sess:
        params = hl.Variable({"dense": {"kernel": jnp.zeros((2, 3))}}, name="params")
        kernel = hl.Variable(jnp.zeros((2, 3)), name="kernel")
        key = hl.Variable(lambda: jax.random.key(0), name="key", trainable=False)
        train.init_from_checkpoint(
            pretrained, {"state/params": params, "state/params/dense/kernel": kernel, "key": key}
        )
        sess.run(hl.global_variables_initializer())
        assert sess.run(params)["dense"]["kernel"].tolist() == np.full((2, 3), 7.0).tolist()
        assert sess.run(kernel).tolist() == np.full((2, 3), 7.0).tolist()
        assert jnp.all(jax.random.key_data(sess.run(key)) == jax.random.key_data(jax.random.key(3)))


def test_earlier_initializer_is_named_and_keeps_the_earlier_values(model, pretrained, caplog):
    early = hl.global_variables_initializer()
    train.init_from_checkpoint(pretrained, {"w": model.w})
    assert f"comes too late for '{early.name}'" in caplog.text
    with hl.Session() as sess:
        sess.run(early)
        assert sess.run(model.w) == -1
        sess.run(model.w.initializer)
        assert sess.run(model.w) == 1


def test_moving_average_made_later_starts_at_the_new_value(model, pretrained):
    train.init_from_checkpoint(pretrained, {"w": model.w})
    average = train.ExponentialMovingAverage(0.9)
    average.apply([model.w])
    with hl.Session() as sess:
        sess.run(hl.global_variables_initializer())
        assert sess.run(average.average(model.w)) == 1


def test_training_starts_with_the_values_and_resumes_from_its_own(model, pretrained, tmp_path):
    train.init_from_checkpoint(pretrained, {"w": model.w})
    change = hl.group(model.w.assign_add(1.0), train.get_or_create_global_step().assign_add(1))
    for begins, ends in ((1, 2), (2, 3)):
        with train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path / "new")) as sess:
            assert sess.run(model.w) == begins
            sess.run(change)
            assert sess.run(model.w) == ends


# Assignments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [(lambda m: [m.w], [[0, 0], 0, 1]), (lambda m: {"w": m.x, "s/u:0": m.u}, [[5, 6], 1, -1])],
)
def test_assign_from_checkpoint_returns_an_operation(model, pretrained, chosen, expected):
    assign, feed = train.assign_from_checkpoint(pretrained, chosen(model))
    with hl.Session() as sess:
        sess.run(hl.global_variables_initializer())
        assert sess.run(assign, feed) is None
        assert [np.asarray(value).tolist() for value in sess.run([model.u, model.x, model.w])] == expected


def test_operation_and_feed_dict_initialise_a_scaffold(pretrained):
    w = hl.Variable(-1.0, name="w")
    init_op, feed = train.assign_from_checkpoint(pretrained, [w])
    scaffold = train.Scaffold(init_op=init_op, init_feed_dict=feed)
    with train.MonitoredSession(train.ChiefSessionCreator(scaffold)) as sess:
        assert sess.run(w) == 1


def test_empty_assignment_is_an_operation(model, pretrained):
    for empty in ([], {}, None):
        assign, feed = train.assign_from_checkpoint(pretrained, empty)
        with hl.Session() as sess:
            assert sess.run(assign, feed) is None


def test_assign_function_adds_nothing_to_the_graph_and_initialises_a_scaffold(model, pretrained):
    version = hl.get_default_graph().version
    take = train.assign_from_checkpoint_fn(pretrained, {"s/u": model.u, "w": model.x})
    assert hl.get_default_graph().version == version
    scaffold = train.Scaffold(init_fn=lambda scaffold, session: take(session))
    with train.MonitoredSession(train.ChiefSessionCreator(scaffold)) as sess:
        assert [np.asarray(value).tolist() for value in sess.run([model.u, model.x, model.w])] == [[5, 6], 1, -1]
    with train.SingularMonitoredSession() as sess:
        take(sess)
        assert sess.run(model.x) == 1


def test_one_value_may_initialise_several_variables(pretrained):
    one, other = hl.Variable([0.0, 0.0], name="one"), hl.Variable([0.0, 0.0], name="other")
    change = hl.group(one.assign_add([1.0, 1.0]), other.assign_sub([1.0, 1.0]))
    with hl.Session() as sess:
        train.assign_from_checkpoint_fn(pretrained, {"s/u": one, "s/u:0": other})(sess)
        for _ in range(3):
            sess.run(change)
        assert [value.tolist() for value in sess.run([one, other])] == [[8.0, 9.0], [2.0, 3.0]]


def test_warm_start_of_all_variables_restores_no_hook_states(tmp_path):
    step = train.get_or_create_global_step()
    change = step.assign_add(1)
    with train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path / "old")) as sess:
        sess.run(change)
    take = train.assign_from_checkpoint_fn(str(tmp_path / "old"), [step])
    with hl.Session(graph=step.graph) as sess:
        take(sess)
        assert sess.run(step) == 1
        assert sess.backend.restored_hook_states == {}


def test_missing_variables_may_be_ignored_with_a_warning(model, pretrained, caplog):
    both = [model.w, model.x]
    for function in (train.assign_from_checkpoint, train.assign_from_checkpoint_fn):
        with pytest.raises(ValueError, match=rf"(?s){function.__name__}: .*missing in the checkpoint: n/x"):
            function(pretrained, both)
        caplog.clear()
        assert function(pretrained, both, ignore_missing_vars=True)
        assert "Variable 'n/x' is not in checkpoint" in caplog.text
    assert train.assign_from_checkpoint_fn(pretrained, [model.x], ignore_missing_vars=True) is None
    assert "has none of the variables" in caplog.text
    with pytest.raises(ValueError, match="requires a variable or more in var_list"):
        train.assign_from_checkpoint_fn(pretrained, [])


def test_function_may_reshape_values(pretrained):
    with hl.Session() as sess:
        column = hl.Variable([[0.0], [0.0]], name="s/u")
        with pytest.raises(ValueError, match=r"different: s/u has shape \(2,\)"):
            train.assign_from_checkpoint_fn(pretrained, [column])
        train.assign_from_checkpoint_fn(pretrained, [column], reshape_variables=True)(sess)
        assert sess.run(column).tolist() == [[5.0], [6.0]]


# By pattern ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"vars_to_warm_start": "w"}, [[0, 0], 0, 1]),
        ({"vars_to_warm_start": ["w", "n/u"], "var_name_to_prev_var_name": {"n/u": "s/u"}}, [[5, 6], 0, 1]),
        ({"vars_to_warm_start": "n/", "var_name_to_prev_var_name": {"n/u:0": "s/u", "n/x": "w"}}, [[5, 6], 1, -1]),
        ({"vars_to_warm_start": None}, [[0, 0], 0, -1]),
    ],
)
def test_pattern_chooses_the_variables(model, pretrained, arguments, expected):
    train.warm_start(pretrained, **arguments)
    assert model.values() == expected


def test_variables_may_be_given_themselves(model, pretrained):
    train.warm_start(pretrained, [model.w])
    assert model.values() == [[0, 0], 0, 1]


def test_error_lists_unsuitable_variables(model, pretrained):
    with pytest.raises(ValueError, match=r"(?s)warm_start: .*missing in the checkpoint: n/u.*missing.*: n/x"):
        train.warm_start(pretrained)
    with pytest.raises(ValueError, match="names variables that are not chosen: zz. Chosen are: w"):
        train.warm_start(pretrained, "w", var_name_to_prev_var_name={"zz": "w"})
    with pytest.raises(ValueError, match="does not support vocabularies"):
        train.warm_start(pretrained, "w", {"w": object()})
    with pytest.raises(TypeError, match="warm_start requires variables, got 3"):
        train.warm_start(pretrained, [model.w, 3])
