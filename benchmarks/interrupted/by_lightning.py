import lightning as L
import progress
import torch
from lightning.pytorch import callbacks, loggers
from task import BATCH, LOG_STEPS, RATE, data, main
from torch import nn
from torch_net import net, weights
from torchdata.stateful_dataloader import StatefulDataLoader


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net()

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), RATE)


class Progress(callbacks.Callback):
    def on_train_start(self, trainer, pl_module):
        if trainer.global_step:
            progress.mark("restored", trainer.global_step)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        progress.mark("step", trainer.global_step)


def train(folder, steps, every):
    x, y = map(torch.from_numpy, data())
    watched = [Progress()]
    # begin
    L.seed_everything(0)
    model = Module()
    batches = StatefulDataLoader(torch.utils.data.TensorDataset(x, y.long()), BATCH, shuffle=True)
    save = callbacks.ModelCheckpoint(folder, every_n_train_steps=every, save_last=True, save_on_exception=True)
    trainer = L.Trainer(
        max_steps=steps,
        callbacks=[save, *watched],
        logger=loggers.TensorBoardLogger(folder),
        log_every_n_steps=LOG_STEPS,
    )
    progress.around(trainer, "save_checkpoint", "saving", "saved")
    trainer.fit(model, batches, ckpt_path="last")
    # end
    return weights(model)


main(train)
