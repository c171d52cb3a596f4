"""Names of averages and of summaries, and paths of checkpoints: as in TensorFlow 2.21, as literals."""

from __future__ import annotations

import numpy as np
import pytest

import hookline_tf1 as tf
from hookline.errors import NotFoundError

AVERAGE = "ExponentialMovingAverage"


def names():
    return [variable.op.name for variable in tf.global_variables()]


def test_an_average_is_named_by_the_variable_scope_of_apply():
    with tf.variable_scope("outer"), tf.variable_scope("inner"):
        weight = tf.get_variable("w", [2])
        tensor = tf.multiply(weight, 2.0, name="t")
        averages = tf.train.ExponentialMovingAverage(0.9)
        averages.apply([weight, tensor])
    expected = [f"outer/inner/outer/inner/{name}/{AVERAGE}" for name in "wt"]
    assert names() == ["outer/inner/w", *expected]
    assert [averages.average_name(each) for each in (weight, tensor)] == expected


def test_an_average_made_outside_of_the_scopes_is_named_after_its_variable():
    with tf.variable_scope("outer"), tf.variable_scope("inner"):
        weight = tf.get_variable("w", [2])
    tf.train.ExponentialMovingAverage(0.9).apply([weight])
    assert names() == ["outer/inner/w", f"outer/inner/w/{AVERAGE}"]


def test_name_scopes_do_not_name_averages_and_variable_scopes_do():
    with tf.name_scope("n"):
        weight = tf.Variable(1.0, name="v")
        with tf.variable_scope("scope"):
            tf.train.ExponentialMovingAverage(0.9).apply([weight])
    assert names() == ["n/v", f"scope/n/v/{AVERAGE}"]


def test_zero_debias_operations_are_named_below_the_average_in_the_scope():
    with tf.variable_scope("outer"):
        tensor = tf.constant(1.0, name="t")
        tf.train.ExponentialMovingAverage(0.9, zero_debias=True).apply([tensor])
    average = f"outer/outer/t/{AVERAGE}"
    assert names() == [average, f"outer/{average}/biased", f"outer/{average}/local_step"]


def test_averages_of_one_variable_are_numbered():
    weight = tf.Variable(1.0, name="v")
    for _ in range(2):
        averages = tf.train.ExponentialMovingAverage(0.9)
        averages.apply([weight])
    assert names() == ["v", f"v/{AVERAGE}", f"v/{AVERAGE}_1"]


def test_before_apply_an_average_is_named_by_the_name_scope():
    with tf.variable_scope("outer"), tf.variable_scope("inner"):
        weight = tf.get_variable("w", [2])
    averages = tf.train.ExponentialMovingAverage(0.9)
    assert list(averages.variables_to_restore()) == [f"outer/inner/w/{AVERAGE}"]
    with tf.variable_scope("else"):
        assert averages.average_name(weight) == f"else/outer/inner/w/{AVERAGE}"


def test_checkpoint_with_an_average_under_its_old_name_is_refused_with_both_names(tmp_path):
    old, new = f"net/w/{AVERAGE}", f"net/net/w/{AVERAGE}"
    with tf.Graph().as_default(), tf.Session() as session:
        tf.Variable([1.0, 2.0], name="net/w")
        tf.Variable([3.0, 4.0], name=old)
        session.run(tf.global_variables_initializer())
        path = tf.train.Saver().save(session, str(tmp_path / "model"))
    with tf.variable_scope("net"):
        weight = tf.get_variable("w", [2])
        averages = tf.train.ExponentialMovingAverage(0.9)
        averages.apply([weight])
    with tf.Session() as session:
        with pytest.raises(NotFoundError, match=rf"missing in the checkpoint: {new}\n.*only in the checkpoint: {old}"):
            tf.train.Saver().restore(session, path)
        # As the error advises.
        tf.train.Saver({"net/w": weight, old: averages.average(weight)}).restore(session, path)
        assert session.run(averages.average(weight)).tolist() == [3.0, 4.0]


def test_summary_operations_have_their_family_once_and_tags_twice(sess):
    x = tf.constant(1.0)
    made = [
        tf.summary.scalar("a", x, family="fam"),
        tf.summary.scalar("a", x, family="fam"),
        tf.summary.scalar("a", x),
    ]
    with tf.name_scope("n"):
        made += [
            tf.summary.scalar("a", x, family="fam"),
            tf.summary.histogram("h", x, family="f"),
            tf.summary.scalar("a b", x, family="fam x"),
        ]
    with tf.variable_scope("v"):
        made += [tf.summary.scalar("a", x, family="fam")]
    made += [
        tf.summary.image("im", tf.zeros([1, 2, 2, 1]), family="f"),
        tf.summary.audio("au", tf.zeros([1, 2]), 10.0, family="f"),
        tf.summary.scalar("fam/a", x),
        tf.summary.scalar("a", x, family="fam"),
    ]

    merged = tf.Summary.FromString(sess.run(tf.summary.merge_all()))

    operations = ["fam/a", "fam/a_1", "a", "n/fam/a", "n/f/h", "n/fam_x/a_b", "v/fam/a", "f/im", "f/au", "fam/a_2"]
    assert [summary.op.name for summary in made] == [*operations, "fam/a_3"]
    assert [value.tag for value in merged.value] == [
        *("fam/fam/a", "fam/fam/a_1", "a", "fam/n/fam/a", "f/n/f/h", "fam_x/n/fam_x/a_b", "fam/v/fam/a"),
        *("f/f/im/image/0", "f/f/au/audio/0", "fam/a_2", "fam/fam/a_3"),
    ]


@pytest.mark.parametrize("step", [None, 3])
def test_directory_alone_is_a_checkpoint_path(step, tmp_path, monkeypatch, sess):
    monkeypatch.chdir(tmp_path)
    weight = tf.Variable(1.0, name="w")
    sess.run(weight.initializer)
    for directory in ("runs/", f"{tmp_path}/others/"):
        saver = tf.train.Saver()
        path = saver.save(sess, directory, step)
        assert tf.train.latest_checkpoint(directory) == path
        sess.run(weight.assign(5.0))
        saver.restore(sess, path if step else directory)
        assert sess.run(weight) == 1.0


def test_merged_summaries_have_tensorflows_names_and_any_collections(sess):
    one = tf.summary.scalar("a", 1.0)
    by_name, by_place = tf.summary.merge([one], ["k"], "mine"), tf.summary.merge([one], collections=("k",))

    assert [merged.name for merged in (by_name, by_place)] == ["mine/mine:0", "Merge/MergeSummary:0"]
    assert tf.get_collection("k") == [by_name, by_place]
    assert tf.summary.merge_all("summaries", None, "all").name == "all/all:0"
    assert sess.run(by_name) == sess.run(by_place)


def test_name_in_the_position_of_collections_is_used_like_in_tensorflow(sess):
    one = tf.summary.scalar("a", 1.0, "xy")

    assert tf.summary.merge([one], "name").name == "Merge/MergeSummary:0"
    assert len(tf.get_collection("n")) == len(tf.get_collection("e")) == len(tf.get_collection("x")) == 1
    assert tf.get_collection("name") == []


@pytest.mark.parametrize("rate", [8000, 8000.0, [8000.0], np.array([8000.0], np.float32), np.int64(8000)])
def test_audio_rate_may_be_any_number(sess, rate):
    rates = [rate, tf.constant(rate, tf.float32)]
    sounds = [tf.summary.audio("a", np.zeros((1, 4), np.float32), each) for each in rates]

    for sound in sess.run(sounds):
        assert tf.Summary.FromString(sound).value[0].audio.sample_rate == 8000


def test_averages_and_slots_are_shared_in_a_reusing_scope():
    made = []
    for _ in range(2):
        with tf.variable_scope("tower", reuse=tf.AUTO_REUSE):
            weight = tf.get_variable("w", [])
            averages = tf.train.ExponentialMovingAverage(0.9)
            averages.apply([weight])
            optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
            optimizer.minimize(weight * weight)
            made.append((averages.average(weight), optimizer.get_slot(weight, "momentum")))

    assert made[0] == made[1]
    assert [slot.op.name for slot in made[0]] == [f"tower/tower/w/{AVERAGE}", "tower/tower/w/Momentum"]
