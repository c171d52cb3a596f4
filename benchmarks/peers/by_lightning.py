import os

import lightning as L
import torch
from lightning.pytorch import callbacks, loggers
from task import BATCH, RATE, WIDTH, data, main
from torch import nn


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(-1) == y).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), RATE)


def train(logdir, steps, every):
    x, y, test_x, test_y = map(torch.from_numpy, data())
    torch.manual_seed(0)
    # begin
    dataset, test = (torch.utils.data.TensorDataset(*each) for each in ((x, y), (test_x, test_y)))
    batches = torch.utils.data.DataLoader(dataset, BATCH, shuffle=True)
    test_batches = torch.utils.data.DataLoader(test, len(test))
    best = callbacks.ModelCheckpoint(logdir, monitor="accuracy", mode="max", save_on_failure=True)
    nan = callbacks.EarlyStopping("loss", patience=10**9, check_finite=True, check_on_train_epoch_end=True)
    cadence = {"val_check_interval": every, "check_val_every_n_epoch": None, "log_every_n_steps": 100}
    logger = loggers.TensorBoardLogger(logdir)
    trainer = L.Trainer(max_steps=steps, logger=logger, callbacks=[best, nan], **cadence)
    last = f"{logdir}/last.ckpt"
    trainer.fit(Module(), batches, test_batches, ckpt_path=last if os.path.exists(last) else None)
    return best.best_model_score
    # end


main(train)
