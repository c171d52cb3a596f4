"""A loop without batches: a step that has its data, or samples them itself."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import hookline as hl

X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
Y = X @ np.arange(4, dtype="float32")


def loss_fn(params):
    return jnp.mean((X @ params - Y) ** 2)


lbfgs = optax.lbfgs()
value_and_grad = optax.value_and_grad_from_state(loss_fn)


def lbfgs_step(params, opt_state):
    loss, grads = value_and_grad(params, state=opt_state)
    updates, opt_state = lbfgs.update(grads, opt_state, params, value=loss, grad=grads, value_fn=loss_fn)
    return optax.apply_updates(params, updates), opt_state, loss


def svi_update(state, rng_key):
    """As of SVI on one array, with a sample of the posterior."""
    noise = jax.random.normal(rng_key, (4,))
    loss, grads = jax.value_and_grad(lambda mean: loss_fn(mean + 0.1 * noise))(state["mean"])
    return {"mean": state["mean"] - 0.05 * grads}, {"loss": loss}


def rl_update(runner_state, unused):
    """As of PureJaxRL, where it is the body of a scan over nothing: it samples for itself."""
    params, rng = runner_state
    rng, ours = jax.random.split(rng)
    assert unused is None
    return (params + jax.random.normal(ours, params.shape), rng), {"returns": params.sum()}


def decayed(model, step):
    loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(X)[:, 0] - Y) ** 2))(model)
    nnx.update(model, jax.tree.map(lambda p, g: p - 0.1 / (1 + step) * g, nnx.state(model), grads))
    return loss


def by_name(opt_state, params):
    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = optax.adam(0.1).update(grads, opt_state)
    return {"params": optax.apply_updates(params, updates), "opt_state": opt_state}, {"loss": loss}


ZEROS = jnp.zeros(4)
STEPS = {
    "L-BFGS": (lbfgs_step, lambda: (ZEROS, lbfgs.init(ZEROS))),
    "SVI with a key": (svi_update, lambda: {"mean": ZEROS}),
    "the body of a scan": (rl_update, lambda: (ZEROS, jax.random.key(3))),
    "an NNX object and the step": (decayed, lambda: nnx.Linear(4, 1, rngs=nnx.Rngs(0))),
    "a dict by name": (by_name, lambda: {"params": ZEROS, "opt_state": optax.adam(0.1).init(ZEROS)}),
}


def numbers(state):
    leaves = jax.tree.leaves(nnx.state(state) if isinstance(state, nnx.Module) else state)
    is_key = lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # noqa: E731
    return [np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf) for leaf in leaves]


@pytest.mark.parametrize("steps_per_run", [1, 16])
@pytest.mark.parametrize("kind", STEPS)
def test_loop_trains_to_the_last_step_and_a_restart_has_the_same_bits(kind, steps_per_run, tmp_path, caplog):
    step, make = STEPS[kind]

    def run(name, last_step):
        loop = hl.train.Loop(step, make(), None, seed=0, steps_per_run=steps_per_run)
        return numbers(loop.run(str(tmp_path / name), last_step, progress=False, nan_check=None))

    whole = run("whole", 25)
    run("parts", 7)
    for one, other in zip(whole, run("parts", 25), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_l_bfgs_and_a_scan_body_give_the_result_of_a_manual_loop():
    params, opt_state = ZEROS, lbfgs.init(ZEROS)
    for _ in range(6):
        params, opt_state, _ = jax.jit(lbfgs_step)(params, opt_state)
    found, _ = hl.train.Loop(lbfgs_step, (ZEROS, lbfgs.init(ZEROS)), None).run(last_step=6, progress=False)
    np.testing.assert_allclose(found, params, rtol=1e-4, atol=1e-5)

    begin = ZEROS, jax.random.key(3)
    by_hand, _ = jax.lax.scan(rl_update, begin, None, 6)
    found = hl.train.Loop(rl_update, begin, None).run(last_step=6, progress=False, nan_check=None)
    np.testing.assert_allclose(found[0], by_hand[0], rtol=1e-5)


def test_hooks_and_evaluations_work_and_a_hook_may_stop():
    class Enough(hl.train.SessionRunHook):
        def __init__(self, loss):
            self.trigger, self.fetches = hl.train.every(1), loss

        def on_trigger(self, firing):
            if firing.values < 1e-3:
                firing.context.request_stop()

    loop = hl.train.Loop(lbfgs_step, (ZEROS, lbfgs.init(ZEROS)), None)
    evaluate = hl.train.Evaluate(lambda params, x: {"norm": jnp.abs(params).sum()}, [X], every=100)
    loop.run(last_step=1000, hooks=[Enough(loop.metrics["loss"]), evaluate], progress=False)
    assert evaluate.step < 50
    assert evaluate.values["norm"] == pytest.approx(6, rel=0.1)


def test_describe_and_user_sessions_work():
    loop = hl.train.Loop(svi_update, {"mean": ZEROS}, None)
    assert "A batch: none." in str(loop.describe(last_step=5))
    with loop.session(progress=False) as session:
        for _ in range(3):
            session.run(loop.train_op)
    assert loop.run(last_step=5, progress=False) is loop.result


@pytest.mark.parametrize(
    ("make", "kind", "said"),
    [
        (lambda loop: loop().run(), ValueError, "Loop.run requires last_step with batches=None, because there are no"),
        (lambda loop: loop().run(last_step=3, epochs=2), ValueError, r"it has no data to pass over \(batches=None\)"),
        (lambda loop: loop(last_batch="pad"), ValueError, "takes last_batch with batches, and there are none"),
        (lambda loop: loop(batch_sharding=jax.P()), ValueError, "takes batch_sharding with batches, and there are"),
        (lambda loop: loop(resume_data=False), ValueError, "takes resume_data with batches, and there are none"),
        (lambda loop: loop(lambda s, a, b, c: s), TypeError, r"with batches=None <lambda> is called with the state"),
    ],
)
def test_options_that_need_batches_are_refused(make, kind, said):
    with pytest.raises(kind, match=said):
        make(lambda step=svi_update, **options: hl.train.Loop(step, {"mean": ZEROS}, None, **options))


def test_step_that_reads_a_batch_gets_an_error_with_the_reason():
    with pytest.raises(AttributeError) as found:
        hl.train.Loop(lambda state, batch: (state + batch.mean(), {}), 0.0, None)
    assert "(state=<the state: a float>, batch=<None, because there are no batches>)" in found.value.__notes__[-1]


@pytest.mark.parametrize("takes", ["nothing", "None"])
def test_evaluation_without_batches_is_one_call(takes, tmp_path):
    def eval_step(params):
        return {"loss": loss_fn(params), "mean": (params.sum(), 4)}

    def with_unused(params, unused):
        assert unused is None
        return eval_step(params)

    evaluate = hl.train.Evaluate(
        eval_step if takes == "nothing" else with_unused, None, every=4, keep_best="loss", sanity_batches=2
    )
    params, _ = hl.train.Loop(lbfgs_step, (ZEROS, lbfgs.init(ZEROS)), None).run(
        str(tmp_path), 8, hooks=[evaluate], progress=False
    )
    assert evaluate.history["loss"].steps == [4, 8]
    assert evaluate.values == {
        "loss": pytest.approx(float(loss_fn(params)), rel=1e-5, abs=1e-9),
        "mean": pytest.approx(float(params.mean()), rel=1e-6),
    }
    assert evaluate.best["loss"].step in (4, 8)


def test_evaluation_takes_no_tensor_of_an_iterator():
    with hl.Graph().as_default():
        tensor = hl.data.iterator([np.zeros(8)])
        with pytest.raises(TypeError, match="reads a source in each evaluation, and iterator:0 is the tensor of an it"):
            hl.train.Evaluate(lambda state, batch: {}, tensor, every=5)
