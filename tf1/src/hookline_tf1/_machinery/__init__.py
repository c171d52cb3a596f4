"""The machinery under TensorFlow's names: graphs, tensors, dtypes, definitions of operations, namespaces and hints."""
