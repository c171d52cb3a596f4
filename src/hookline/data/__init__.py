"""Data as tensors: iterators that read ahead and whose positions are in checkpoints."""

from hookline.data.arrays import arrays
from hookline.data.batches import Padded
from hookline.data.iterator import iterator

__all__ = ["Padded", "arrays", "iterator"]
