"""Grain's datasets and loaders continue at a checkpoint's position, with Grain's own states."""

from __future__ import annotations

import numpy as np
import pytest

import hookline as hl
from hookline import train

grain = pytest.importorskip("grain")

NUMBERS = np.arange(40.0, dtype=np.float32)


def dataset():
    return grain.MapDataset.source(list(NUMBERS)).shuffle(seed=3).batch(4)


def loader():
    sampler = grain.samplers.IndexSampler(num_records=40, shuffle=True, seed=3, num_epochs=2)
    return grain.DataLoader(
        data_source=list(NUMBERS), sampler=sampler, operations=[grain.transforms.Batch(4)], worker_count=0
    )


SOURCES = {
    "map dataset": dataset,
    "iter dataset": lambda: dataset().to_iter_dataset(),
    "iterator": lambda: iter(dataset().to_iter_dataset()),
    "loader": loader,
}


def trained(source, folder, last_step):
    """Trains up to a step, from the newest checkpoint if there is one; returns a number that all batches made."""
    with hl.Graph().as_default():
        batch = hl.data.iterator(source())
        weight, step = hl.Variable(0.0, name="weight"), train.get_or_create_global_step()
        train_op = hl.group(weight.assign(weight * 1.5 + batch[0]), step.assign_add(1))
        with train.MonitoredTrainingSession(
            checkpoint_dir=str(folder),
            hooks=[train.StopAtStepHook(last_step=last_step)],
            save_summaries_steps=None,
            log_step_count_steps=None,
        ) as session:
            while not session.should_stop():
                session.run(train_op)
    return float(train.load_variable(train.latest_checkpoint(str(folder)), "weight"))


@pytest.mark.parametrize("kind", SOURCES)
def test_resumed_job_gets_the_batches_of_an_uninterrupted_one(kind, tmp_path):
    whole = trained(SOURCES[kind], tmp_path / "whole", 9)
    trained(SOURCES[kind], tmp_path / "parts", 4)
    assert trained(SOURCES[kind], tmp_path / "parts", 9) == whole


class Nameless:
    """A data source as in a tutorial, without a `__repr__`."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return np.float32(index)


class Named(Nameless):
    def __repr__(self):
        return "Named()"


@pytest.mark.parametrize("source", [Nameless(), Named()])
def test_source_whose_state_has_an_address_gives_a_warning(source, caplog):
    sampler = grain.samplers.IndexSampler(num_records=40, seed=3, num_epochs=2)
    loader = grain.DataLoader(
        data_source=source, sampler=sampler, operations=[grain.transforms.Batch(4)], worker_count=0
    )
    hl.train.Loop(lambda w, batch: (w + batch.sum(), {}), np.float32(0), loader).run(last_step=2, progress=False)
    warned = [line for line in caplog.messages if "has the address of an object, " in line]
    assert len(warned) == isinstance(source, Nameless) - isinstance(source, Named)
