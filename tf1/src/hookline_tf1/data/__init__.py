"""`tf.data`: datasets and iterators."""

from hookline_tf1._machinery.namespaces import offered
from hookline_tf1.data import experimental
from hookline_tf1.data._dataset import Dataset
from hookline_tf1.data._iterators import Iterator, make_initializable_iterator, make_one_shot_iterator
from hookline_tf1.data._readers import FixedLengthRecordDataset, TextLineDataset, TFRecordDataset

__all__ = [
    "Dataset",
    "FixedLengthRecordDataset",
    "Iterator",
    "TFRecordDataset",
    "TextLineDataset",
    "experimental",
    "get_output_shapes",
    "get_output_types",
    "make_initializable_iterator",
    "make_one_shot_iterator",
]


def get_output_types(dataset_or_iterator: Dataset | Iterator) -> object:
    """Returns the dtypes of the components of an element."""
    return dataset_or_iterator.output_types


def get_output_shapes(dataset_or_iterator: Dataset | Iterator) -> object:
    """Returns the shapes of the components of an element."""
    return dataset_or_iterator.output_shapes


__getattr__, __dir__ = offered("tf.data", lambda: __all__)
