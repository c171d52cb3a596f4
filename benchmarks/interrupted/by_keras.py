import os

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
import progress
from task import BATCH, CLASSES, DROPOUT, INPUTS, RATE, STEPS_PER_EPOCH, WIDTH, data, main


class Progress(keras.callbacks.Callback):
    epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        progress.mark("step", self.epoch * STEPS_PER_EPOCH + batch + 1)


def train(folder, steps, every):
    x, y = data()
    keras.utils.set_random_seed(0)
    hidden = [each for _ in range(2) for each in (keras.layers.Dense(WIDTH, "relu"), keras.layers.Dropout(DROPOUT))]
    model = keras.Sequential([keras.Input((INPUTS,)), *hidden, keras.layers.Dense(CLASSES)])
    model.compile(keras.optimizers.Adam(RATE), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    progress.around(model, "save_weights", "saving", "saved")
    progress.around(model, "load_weights", None, "restored")
    watched = [Progress()]
    # begin
    callbacks = [
        *watched,
        keras.callbacks.BackupAndRestore(f"{folder}/backup", save_freq=every, double_checkpoint=True),
        keras.callbacks.CSVLogger(f"{folder}/log.csv", append=True),
    ]
    model.fit(x, y, BATCH, epochs=steps // STEPS_PER_EPOCH, verbose=2, callbacks=callbacks)
    # end
    return map(np.asarray, model.get_weights())


main(train)
