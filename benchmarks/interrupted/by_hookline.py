import jax
import numpy as np
import progress
from jax_net import init, train_step
from task import BATCH, LOG_STEPS, data, main

import hookline as hl


def watch_saves():
    save_async = hl.train.Saver.save_async

    def marked(*args, **kwargs):
        progress.mark("saving")
        pending = save_async(*args, **kwargs)
        pending.when_done(lambda _: progress.mark("saved"))
        return pending

    hl.train.Saver.save_async = marked


class Progress(hl.train.SessionRunHook):
    trigger = hl.train.every(1)

    def after_create_session(self, session, coord):
        if session.global_step:
            progress.mark("restored", session.global_step)

    def on_trigger(self, firing):
        progress.mark("step", firing.global_step)


def train(folder, steps, every):
    watch_saves()
    x, y = data()
    watched = [Progress()]
    # begin
    batches = hl.data.from_arrays((x, y), BATCH, shuffle_seed=0, epochs=None)
    loop = hl.train.Loop(train_step, init(), batches)
    checkpoints = hl.train.CheckpointOptions(save_steps=every)
    logging = hl.train.LoggingOptions(summary_steps=LOG_STEPS)
    params, _ = loop.run(folder, steps, hooks=watched, checkpoints=checkpoints, logging=logging)
    # end
    return map(np.asarray, jax.tree.leaves(params))


main(train)
