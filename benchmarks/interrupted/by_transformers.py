import progress
import torch
from task import BATCH, LOG_STEPS, RATE, data, main
from torch import nn
from torch_net import net, weights
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, x, labels):
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Data(torch.utils.data.Dataset):
    def __init__(self):
        x, y = data()
        self.x, self.y = torch.from_numpy(x), torch.from_numpy(y).long()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, place):
        return {"x": self.x[place], "labels": self.y[place]}


class Progress(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        if state.global_step:
            progress.mark("restored", state.global_step)

    def on_step_end(self, args, state, control, **kwargs):
        progress.mark("step", state.global_step)


def train(folder, steps, every):
    watched = [Progress()]
    # begin
    torch.manual_seed(0)
    args = TrainingArguments(
        folder,
        max_steps=steps,
        per_device_train_batch_size=BATCH,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        save_steps=every,
        logging_steps=LOG_STEPS,
        report_to="tensorboard",
        enable_jit_checkpoint=True,
        seed=0,
    )
    trainer = Trainer(Model(), args, train_dataset=Data(), callbacks=watched)
    progress.around(trainer, "_save_checkpoint", "saving", "saved")
    trainer.train(resume_from_checkpoint=get_last_checkpoint(folder))
    if trainer.state.global_step < steps:
        raise SystemExit(143)
    # end
    return weights(trainer.model)


main(train)
