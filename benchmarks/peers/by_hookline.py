from flax import nnx
from net import Net, accuracy_of, optimizer_of, step_of
from task import BATCH, data, main

import hookline as hl


def train(logdir, steps, every):
    x, y, test_x, test_y = data()
    model = Net(nnx.Rngs(0))
    # begin
    batches = hl.data.from_arrays((x, y), BATCH, shuffle_seed=0, epochs=None)
    evaluate = hl.train.Evaluate(accuracy_of, [(test_x, test_y)], every=every, keep_best="accuracy")
    loop = hl.train.Loop(step_of, (model, optimizer_of(model)), batches)
    loop.run(logdir, steps, hooks=[evaluate], checkpoints=hl.train.CheckpointOptions(save_steps=every))
    return evaluate.best["accuracy"].value
    # end


main(train)
