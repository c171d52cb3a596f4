"""Data as tensors: iterators that read ahead, and whose position is in the checkpoint."""

from hookline.data.arrays import arrays
from hookline.data.batches import Padded
from hookline.data.iterator import iterator

__all__ = ["Padded", "arrays", "iterator"]
