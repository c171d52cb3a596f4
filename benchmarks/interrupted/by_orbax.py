import csv
import socket

import grain
import jax
import numpy as np
import orbax.checkpoint as ocp
import progress
from jax_net import init, train_step
from task import BATCH, LOG_STEPS, data, main


def free_address():
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return f"localhost:{found.getsockname()[1]}"


def train(folder, steps, every):
    x, y = data()
    # begin
    # Orbax learns of a SIGTERM from JAX's service for jobs of several processes.
    jax.distributed.initialize(free_address(), num_processes=1, process_id=0)
    batches = iter(
        grain.MapDataset.range(len(x))
        .shuffle(seed=0)
        .repeat()
        .map(lambda place: (x[place], y[place]))
        .batch(BATCH)
        .to_iter_dataset()
    )
    step_fn = jax.jit(train_step, donate_argnums=(0, 1))
    params, opt_state = init()
    seed = jax.random.key(0)
    begin = 0
    options = ocp.CheckpointManagerOptions(save_interval_steps=every, max_to_keep=5)
    with ocp.CheckpointManager(f"{folder}/checkpoints", options=options) as manager:
        if manager.latest_step() is not None:
            begin = manager.latest_step()
            state = {"params": params, "opt_state": opt_state}
            abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
            restored = manager.restore(
                begin,
                args=ocp.args.Composite(
                    state=ocp.args.StandardRestore(abstract), batches=grain.checkpoint.CheckpointRestore(batches)
                ),
            )
            params, opt_state = restored["state"]["params"], restored["state"]["opt_state"]
            batches = restored["batches"]
            progress.mark("restored", begin)
        with open(f"{folder}/log.csv", "a", newline="") as file:
            log = csv.writer(file)
            saving = False  # progress
            for step in range(begin + 1, steps + 1):
                params, opt_state, loss = step_fn(params, opt_state, next(batches), jax.random.fold_in(seed, step))
                progress.mark("step", step)
                if step % LOG_STEPS == 0:
                    log.writerow([step, float(loss)])
                    file.flush()
                if saving and not manager.is_saving_in_progress():  # progress
                    progress.mark("saved")
                    saving = False  # progress
                if manager.should_save(step) or step == steps:
                    progress.mark("saving")
                    saving = True  # progress
                    manager.save(
                        step,
                        args=ocp.args.Composite(
                            state=ocp.args.StandardSave({"params": params, "opt_state": opt_state}),
                            batches=grain.checkpoint.CheckpointSave(batches),
                        ),
                        force=True,
                    )
                    if manager.reached_preemption(step):
                        manager.wait_until_finished()
                        raise SystemExit(143)
    # end
    return map(np.asarray, jax.tree.leaves(params))


main(train)
