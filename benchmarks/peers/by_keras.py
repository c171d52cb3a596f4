import os

os.environ["KERAS_BACKEND"] = "jax"

import keras
from task import BATCH, RATE, WIDTH, data, main


def train(logdir, steps, every):
    x, y, test_x, test_y = data()
    keras.utils.set_random_seed(0)
    layers = [keras.Input((64,)), keras.layers.Dense(WIDTH, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(RATE), loss, metrics=["accuracy"])
    # begin
    best = f"{logdir}/best.weights.h5"
    callbacks = [
        keras.callbacks.ModelCheckpoint(best, monitor="val_accuracy", save_best_only=True, save_weights_only=True),
        keras.callbacks.BackupAndRestore(f"{logdir}/backup", save_freq=every),
        keras.callbacks.TensorBoard(logdir, update_freq=100),
        keras.callbacks.TerminateOnNaN(),
    ]
    epochs = steps * BATCH // len(x)
    # Keras evaluates at the end of epochs; every steps are so many of them.
    validation = {"validation_data": (test_x, test_y), "validation_batch_size": len(test_x)}
    validation["validation_freq"] = every * BATCH // len(x)
    model.fit(x, y, BATCH, epochs, verbose=2, callbacks=callbacks, **validation)
    model.load_weights(best)
    return model.evaluate(test_x, test_y, len(test_x), verbose=0)[1]
    # end


main(train)
