import jax
import numpy as np
import orbax.checkpoint as ocp
from clu import metric_writers, periodic_actions
from flax import nnx
from net import Net, accuracy_of, optimizer_of, step_of
from task import BATCH, data, main


def train(logdir, steps, every):
    x, y, test_x, test_y = data()
    model = Net(nnx.Rngs(0))
    # begin
    graphdef, state = nnx.split((model, optimizer_of(model)))

    @jax.jit
    def train_step(state, batch):
        objects = nnx.merge(graphdef, state)
        metrics = step_of(*objects, batch)
        return nnx.state(objects), metrics

    @jax.jit
    def eval_step(state, batch):
        return accuracy_of(nnx.merge(graphdef, state)[0], batch)

    def batch_of(step):
        epoch, place = divmod(step - 1, len(x) // BATCH)
        chosen = np.random.default_rng(epoch).permutation(len(x))[place * BATCH : (place + 1) * BATCH]
        return x[chosen], y[chosen]

    options = ocp.CheckpointManagerOptions(max_to_keep=5, best_fn=lambda found: found["accuracy"], best_mode="max")
    with ocp.CheckpointManager(logdir, options=options) as manager:
        begin = manager.latest_step() or 0
        if begin:
            state = manager.restore(begin, args=ocp.args.StandardRestore(state))
        writer = metric_writers.create_default_writer(logdir, asynchronous=True)
        report = periodic_actions.ReportProgress(num_train_steps=steps, writer=writer)
        for step in range(begin + 1, steps + 1):
            state, metrics = train_step(state, batch_of(step))
            report(step)
            if step % 100 == 0:
                loss = float(metrics["loss"])
                if not np.isfinite(loss):
                    raise FloatingPointError(f"loss is {loss} at step {step}")
                writer.write_scalars(step, {"loss": loss})
            if step % every == 0 or step == steps:
                found = {name: float(value) for name, value in eval_step(state, (test_x, test_y)).items()}
                writer.write_scalars(step, {f"eval_{name}": value for name, value in found.items()})
                manager.save(step, args=ocp.args.StandardSave(state), metrics=found)
        writer.close()
        manager.wait_until_finished()
        return manager.metrics(manager.best_step())["accuracy"]
    # end


main(train)
