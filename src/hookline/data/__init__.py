"""Data as tensors: iterators that read ahead and whose positions are in checkpoints."""

from hookline.interrupts import held_back

with held_back():
    from hookline.data.arrays import arrays
    from hookline.data.batches import Padded
    from hookline.data.by_process import by_process
    from hookline.data.iterator import iterator

__all__ = ["Padded", "arrays", "by_process", "iterator"]
