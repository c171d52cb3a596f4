"""The network in PyTorch."""

from __future__ import annotations

from task import CLASSES, DROPOUT, INPUTS, WIDTH
from torch import nn


def net():
    hidden = [nn.Linear(INPUTS, WIDTH), nn.ReLU(), nn.Dropout(DROPOUT)]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(WIDTH, CLASSES))


def weights(model):
    return [tensor.detach().numpy() for _, tensor in sorted(model.state_dict().items())]
