"""The machinery under TensorFlow's names: graphs, tensors, dtypes, tables of operations, namespaces and their hints."""
