"""`tf.distributions` and the loss of sequences: TF 1.15 computes the same numbers."""

from __future__ import annotations

import re

import numpy as np
import pytest

import hookline_tf1 as tf

ds = tf.distributions


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        graph.seed = 0
        yield graph


def test_normal_distribution_has_its_moments_and_densities(sess):
    normal, other = ds.Normal(loc=[0.0, 1.0], scale=[[1.0], [2.0]]), ds.Normal(0.0, 2.0)

    made = [normal.log_prob(1.0), normal.prob(1.0), normal.cdf(1.0), normal.entropy(), ds.kl_divergence(normal, other)]
    found = sess.run([*made, normal.mean(), normal.variance()])
    np.testing.assert_allclose(found[0], [[-1.4189385, -0.9189385], [-1.7370857, -1.6120857]], rtol=1e-6)
    np.testing.assert_allclose(found[1], np.exp(found[0]), rtol=1e-6)
    np.testing.assert_allclose(found[2], [[0.8413447, 0.5], [0.6914625, 0.5]], rtol=1e-6)
    np.testing.assert_allclose(found[3], [[1.4189385] * 2, [2.1120857] * 2], rtol=1e-6)
    np.testing.assert_allclose(found[4], [[0.3181472, 0.4431472], [0, 0.125]], atol=1e-6)
    assert (found[5].tolist(), found[6].tolist()) == ([[0, 1], [0, 1]], [[1, 1], [4, 4]])


def test_samples_have_the_requested_shape_then_the_parameters_shape(sess):
    normal, logits = ds.Normal([0.0, 5.0], 0.1), tf.placeholder(tf.float32, [None, 3])
    classes = ds.Categorical(logits=logits)

    shapes = [normal.sample(), normal.sample(1), normal.sample([4, 3]), classes.sample(), classes.sample(2)]
    assert [made.shape.as_list() for made in shapes] == [[2], [1, 2], [4, 3, 2], [None], [2, None]]
    feeds = {logits: [[0.0, 90.0, 0.0], [90.0, 0.0, 0.0]]}
    drawn, many = sess.run([classes.sample([2, 2]), normal.sample(2000, seed=1)], feeds)
    assert drawn.tolist() == [[[1, 0]] * 2] * 2
    np.testing.assert_allclose([many.mean(0), many.std(0)], [[0, 5], [0.1, 0.1]], atol=0.01)


def test_gradients_pass_through_samples_and_density(sess):
    loc, scale = tf.constant(1.0), tf.constant(2.0)
    normal = ds.Normal(loc, scale)
    sample = normal.sample()

    grads = tf.gradients(sample, [loc, scale]) + tf.gradients(normal.log_prob(4.0), [loc, scale])
    drawn, *found = sess.run([sample, *grads])
    np.testing.assert_allclose(found, [1, (drawn - 1) / 2, 0.75, (9 / 4 - 1) / 2], rtol=1e-5)


def test_bernoulli_has_its_probabilities(sess):
    coin, other = ds.Bernoulli(probs=[0.25, 0.5]), ds.Bernoulli(logits=[0.0, 0.0])

    made = [coin.log_prob([1, 0]), coin.entropy(), coin.mode(), coin.variance(), ds.kl_divergence(coin, other)]
    found = sess.run([*made, coin.sample(2000, seed=1)])
    np.testing.assert_allclose(found[0], np.log([0.25, 0.5]), rtol=1e-5)
    np.testing.assert_allclose(found[1], [0.5623351, 0.6931472], rtol=1e-5)
    assert found[2].tolist() == [0, 0]
    np.testing.assert_allclose(found[3], [0.1875, 0.25], rtol=1e-5)
    np.testing.assert_allclose(found[4], [0.1308121, 0], atol=1e-5)
    np.testing.assert_allclose(found[5].mean(0), [0.25, 0.5], atol=0.03)
    assert found[5].dtype == np.int32


def test_categorical_has_its_probabilities(sess):
    one, other = ds.Categorical(probs=[[0.25, 0.75], [0.5, 0.5]]), ds.Categorical(logits=[[0.0, 0.0], [0.0, 0.0]])

    made = [one.log_prob([1, 0]), one.entropy(), one.mode(), one.kl_divergence(other), other.prob([0, 1])]
    found = sess.run(made)
    np.testing.assert_allclose(found[0], np.log([0.75, 0.5]), rtol=1e-5)
    np.testing.assert_allclose(found[1], [0.5623351, 0.6931472], rtol=1e-5)
    assert found[2].tolist() == [1, 0]
    np.testing.assert_allclose(found[3], [0.1308121, 0], atol=1e-6)
    np.testing.assert_allclose(found[4], [0.5, 0.5], rtol=1e-6)


def test_uniform_and_multivariate_normal_have_their_densities(sess):
    uniform, vector = ds.Uniform(1.0, 3.0), tf.contrib.distributions.MultivariateNormalDiag([0.0, 1.0], [1.0, 2.0])
    standard = tf.contrib.distributions.MultivariateNormalDiag(loc=[0.0, 0.0])

    made = [uniform.log_prob([2.0, 4.0]), uniform.entropy(), vector.log_prob([1.0, 1.0]), vector.entropy()]
    found = sess.run([*made, ds.kl_divergence(vector, standard), uniform.sample(500)])
    np.testing.assert_allclose(found[0], [-np.log(2), -np.inf], rtol=1e-6)
    np.testing.assert_allclose(found[1:5], [np.log(2), -3.0310242, 3.5310242, 1.3068528], rtol=1e-6)
    assert 1 <= found[5].min() < 1.1 < 2.9 < found[5].max() < 3
    assert vector.sample(3).shape.as_list() == [3, 2]


@pytest.mark.parametrize(
    ("made", "name", "nearest"),
    [
        (lambda: ds.Normal(0.0, 1.0), "quantile", "hookline.op with jax.scipy.stats"),
        (lambda: ds.Normal(0.0, 1.0), "stdev", "tf.distributions.Normal.stddev"),
        (lambda: ds.Bernoulli(0.5), "batch_shape", "hookline.op with jax.scipy.stats"),
        (lambda: tf.contrib.distributions.MultivariateNormalDiag([0.0]), "event_shape", "hookline.op with"),
    ],
)
def test_missing_attribute_names_the_nearest(made, name, nearest):
    random = made()
    where = f"tf.{'contrib.' * ('Diag' in type(random).__name__)}distributions.{type(random).__name__}"
    with pytest.raises(
        AttributeError, match=re.escape(f"hookline_tf1 has no {where}.{name}. The nearest thing: {nearest}")
    ):
        getattr(random, name)
    assert not hasattr(random, name)


def test_invalid_parameters_are_refused():
    with pytest.raises(ValueError, match="Bernoulli requires one of logits and probs, got both"):
        ds.Bernoulli(logits=0.0, probs=0.5)
    with pytest.raises(ValueError, match="Categorical requires one of logits and probs, got none"):
        ds.Categorical()
    with pytest.raises(NotImplementedError, match="two distributions of one kind, got Normal and Uniform"):
        ds.kl_divergence(ds.Normal(0.0, 1.0), ds.Uniform())
    with pytest.raises(AttributeError, match=r"no tf\.distributions\.Gamma\. The nearest thing: .*jax\.scipy\.stats"):
        _ = ds.Gamma


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, 1.5),
        ({"average_across_timesteps": False}, [1.5, 1.5, 0]),
        ({"average_across_batch": False}, [1.5, 1.5]),
        ({"average_across_timesteps": False, "average_across_batch": False}, [[1.5, 1.5, 0], [0.75, 0, 0]]),
        ({"average_across_timesteps": False, "average_across_batch": False, "sum_over_timesteps": True,
          "sum_over_batch": True}, 1.25),
    ],
)  # fmt: skip
def test_sequence_loss_is_weighted(how, expected, sess):
    logits, weights = np.zeros((2, 3, 4), "float32"), [[1.0, 1.0, 0.0], [0.5, 0.0, 0.0]]

    def loss_fn(labels, logits):
        return tf.to_float(labels) + tf.reduce_sum(logits, 1)

    made = tf.contrib.seq2seq.sequence_loss(logits, tf.fill([2, 3], 1.5), weights, softmax_loss_function=loss_fn, **how)
    np.testing.assert_allclose(sess.run(made), expected, rtol=1e-6)
    plain = tf.contrib.seq2seq.sequence_loss(logits, tf.zeros([2, 3], tf.int32), weights, **how)
    np.testing.assert_allclose(sess.run(plain), np.multiply(expected, np.log(4) / 1.5), rtol=1e-6)


def test_class_out_of_range_has_no_probability(sess):
    classes, more = ds.Categorical(logits=[1.0, 2.0]), tf.placeholder(tf.float32, [None, 2])
    drawn = tf.placeholder(tf.int32, [2])
    shares = classes.log_prob(drawn)
    several = ds.Categorical(logits=more).log_prob([[0], [1]])
    assert several.shape.as_list() == [2, None]
    np.testing.assert_allclose(sess.run(shares, {drawn: [0, 1]}), [-1.3132617, -0.3132617], rtol=1e-5)
    np.testing.assert_allclose(sess.run(several, {more: np.zeros((3, 2))}), [[np.log(0.5)] * 3] * 2, rtol=1e-5)
    for wrong in (-1, 2):
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"value\[1\] = {wrong} is not in \[0, 2\)"):
            sess.run(shares, {drawn: [0, wrong]})
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"value = -1 is not in \[0, 2\)"):
        classes.log_prob(-1)


def test_impossible_class_does_not_change_the_others(sess):
    assert sess.run(ds.Categorical(probs=[0.0, 1.0]).log_prob([0, 1])).tolist() == [-np.inf, 0]


def test_log_prob_has_a_gradient(sess):
    logits = tf.constant([[1.0, 2.0]])
    (found,) = tf.gradients(ds.Categorical(logits=logits).log_prob([1]), [logits])
    np.testing.assert_allclose(sess.run(found), [[-0.268941, 0.268941]], rtol=1e-5)
