"""TensorFlow 1.x's names over hookline: `import hookline_tf1 as tf`, and a script trains on JAX.

In each import line of a script, replace `tensorflow` by `hookline_tf1`; `_tf/module_aliases.py` has the modules below
`tensorflow` that scripts import.

The package has three layers, and imports only go down. At the top each namespace is a file or a folder: `tf.losses` is
`losses`, and the names in `tf` itself are in `_tf`. Below it is `_machinery`, and below that `_rules`, the rules of
shapes and constants.

Example:
    >>> import hookline_tf1 as tf
    >>> x = tf.placeholder(tf.float32, [None, 2], name="x")
    >>> total = tf.reduce_sum(tf.square(x), axis=1)
    >>> with tf.Session() as sess:
    ...     print(sess.run(total, feed_dict={x: [[3, 4]]}))
    [25.]
"""

import sys as _sys
from typing import Any as _Any

# isort: off
from hookline_tf1 import _version as _version  # First, to refuse another version of hookline.
from hookline.extend import defer_sigint as _held_back
# isort: on

with _held_back():
    from hookline_tf1 import (
        app,
        compat,
        config,
        contrib,
        data,
        distributions,
        dtypes,
        errors,
        estimator,
        flags,
        gfile,
        image,
        initializers,
        io,
        layers,
        linalg,
        logging,
        losses,
        math,
        metrics,
        nn,
        python_io,
        random,
        sparse,
        strings,
        summary,
        test,
        train,
    )
    from hookline_tf1._machinery.graphs import Graph as _Graph
    from hookline_tf1._tf import front_end as _front_end
    from hookline_tf1._tf import module_aliases as _module_aliases

    # The names in `tf` itself.
    # isort: off
    # fmt: off
    from hookline_tf1._machinery.default_session import get_default_session
    from hookline_tf1._machinery.dtypes import (
        DType, as_dtype, bfloat16, bool_ as bool, complex128, complex64, double, float16, float32, float64,
        half, int16, int32, int64, int8, string, uint16, uint32, uint64, uint8,
    )
    from hookline_tf1._machinery.graphs import (
        Graph, GraphKeys, add_to_collection, add_to_collections, colocate_with, control_dependencies,
        get_collection, get_collection_ref, get_default_graph, name_scope, op_scope, reset_default_graph,
        set_random_seed,
    )
    from hookline_tf1._machinery.nodes import constant, convert_to_tensor, placeholder, placeholder_with_default
    from hookline_tf1._machinery.tensors import Operation, Tensor, is_tensor
    from hookline_tf1._rules.tensor_shape import Dimension, TensorShape
    from hookline_tf1._tf.array_ops import (
        batch_gather, boolean_mask, broadcast_to, concat, depth_to_space, diag, diag_part, einsum, expand_dims,
        eye, fill, gather, gather_nd, identity, matrix_band_part, matrix_diag, matrix_transpose, meshgrid,
        newaxis, norm, one_hot, ones, ones_like, pad, prevent_gradient, rank, reshape, reverse,
        reverse_sequence, reverse_v2, scatter_nd, searchsorted, sequence_mask, shape, shape_n, size, slice,
        space_to_depth, split, squeeze, stack, stop_gradient, strided_slice, tile, transpose, unstack, where,
        zeros, zeros_like,
    )
    from hookline_tf1._tf.before_1_0 import (
        all_variables, arg_max, arg_min, audio_summary, batch_matmul, complex_abs, concat_v2, histogram_summary,
        image_summary, initialize_all_tables, initialize_all_variables, initialize_local_variables,
        initialize_variables, inv, merge_all_summaries, merge_summary, mul, neg, pack, scalar_summary, select,
        sub, unpack,
    )
    from hookline_tf1._tf.check_ops import (
        Assert, Print, add_check_numerics_ops, assert_equal, assert_greater, assert_greater_equal, assert_less,
        assert_less_equal, assert_negative, assert_non_negative, assert_none_equal, assert_positive,
        assert_rank, assert_rank_at_least, assert_type, check_numerics, verify_tensor_all_finite,
    )
    from hookline_tf1._tf.clip_ops import clip_by_global_norm, global_norm
    from hookline_tf1._tf.cond import case, cond
    from hookline_tf1._tf.control_flow_ops import group, no_op, tuple
    from hookline_tf1._tf.csv_ops import decode_csv
    from hookline_tf1._tf.gradients import gradients, hessians
    from hookline_tf1._tf.io_ops import matching_files, read_file, write_file
    from hookline_tf1._tf.math_ops import (
        argsort, clip_by_average_norm, confusion_matrix, count_nonzero, cross, histogram_fixed_width, igamma,
        igammac, invert_permutation, lbeta, roll, scalar_mul, sort, truncatediv,
    )
    from hookline_tf1._tf.py_func import py_func
    from hookline_tf1._tf.reader_ops import (
        FixedLengthRecordReader, IdentityReader, ReaderBase, TFRecordReader, TextLineReader, WholeFileReader,
    )
    from hookline_tf1._tf.run_options import RunOptions
    from hookline_tf1._tf.session import InteractiveSession, Session
    from hookline_tf1._tf.sparse_ops import (
        SparseTensor, SparseTensorValue, sparse_tensor_to_dense, sparse_to_dense, string_split,
    )
    from hookline_tf1._tf.state_ops import (
        assign, assign_add, assign_sub, scatter_add, scatter_sub, scatter_update,
    )
    from hookline_tf1._tf.string_ops import (
        as_string, decode_base64, decode_raw, encode_base64, reduce_join, regex_replace, string_join,
        string_strip, string_to_number, substr,
    )
    from hookline_tf1._tf.variable_scopes import (
        AUTO_REUSE, VariableScope, get_local_variable, get_variable, get_variable_scope, make_template,
        no_regularizer, variable_op_scope, variable_scope,
    )
    from hookline_tf1._tf.variables import (
        Variable, assert_variables_initialized, global_variables, global_variables_initializer,
        is_variable_initialized, local_variables, local_variables_initializer, model_variables,
        moving_average_variables, report_uninitialized_variables, tables_initializer, trainable_variables,
        variables_initializer,
    )
    from hookline_tf1.compat import (
        as_bytes, as_str, as_str_any, as_text, disable_control_flow_v2, disable_eager_execution,
        disable_resource_variables, disable_tensor_equality, disable_v2_behavior, disable_v2_tensorshape,
        enable_eager_execution, enable_resource_variables, executing_eagerly,
    )
    from hookline_tf1.config import device
    from hookline_tf1.initializers import (
        constant_initializer, glorot_normal_initializer, glorot_uniform_initializer, ones_initializer,
        orthogonal_initializer, random_normal_initializer, random_uniform_initializer,
        truncated_normal_initializer, uniform_unit_scaling_initializer, variance_scaling_initializer,
        zeros_initializer,
    )
    from hookline_tf1.linalg import (
        cholesky, cholesky_solve, matrix_determinant, matrix_diag_part,
        matrix_inverse, matrix_set_diag, matrix_solve, matrix_triangular_solve, qr, self_adjoint_eig,
        self_adjoint_eigvals, svd,
    )
    from hookline_tf1.math import (
        abs, accumulate_n, acos, acosh, add, add_n, argmax, argmin, asin, asinh, atan, atan2, atanh, cast, ceil,
        clip_by_norm, clip_by_value, conj, cos, cosh, cumprod, cumsum, digamma, div, div_no_nan, divide, equal,
        erf, erfc, exp, expm1, floor, floor_div, floordiv, floormod, greater, greater_equal, is_finite, is_inf,
        is_nan, less, less_equal, lgamma, lin_space, linspace, log, log1p, log_sigmoid, logical_and,
        logical_not, logical_or, logical_xor, matmul, maximum, minimum, mod, multiply, negative, not_equal, pow,
        range, realdiv, reciprocal, reduce_all, reduce_any, reduce_logsumexp, reduce_max, reduce_mean,
        reduce_min, reduce_prod, reduce_sum, rint, round, rsqrt, saturate_cast, sigmoid, sign, sin, sinh, sqrt,
        square, squared_difference, subtract, tan, tanh, tensordot, to_double, to_float, to_int32, to_int64,
        trace, truediv, unsorted_segment_max, unsorted_segment_mean, unsorted_segment_min, unsorted_segment_sum,
    )
    from hookline_tf1.random import (
        categorical, multinomial, random_crop, random_gamma, random_normal, random_poisson, random_shuffle,
        random_uniform, truncated_normal,
    )
    # fmt: on
    # isort: on
from hookline import RunMetadata
from hookline_tf1._machinery.namespaces import missing as _missing

VERSION = __version__ = "1.15.0"
GIT_VERSION, COMPILER_VERSION = "hookline", "XLA"
NotDifferentiable = NoGradient = lambda op_type: None
_Graph.front_end = _front_end.ScriptFrontEnd()  # Last: it imports all classes that graphs create.

# Imported on first use: their protobuf messages are slow to import.
_MESSAGES: dict[str, _Any] = {
    **dict.fromkeys(("ConfigProto", "GPUOptions", "GraphOptions", "OptimizerOptions"), config),
    **dict.fromkeys(("Event", "SessionLog", "Summary"), summary),
}
_NAMES = sorted(name for name in {*globals(), *_MESSAGES} if not name.startswith("_"))
_module_aliases.register(_sys.modules[__name__])


def __dir__() -> list[str]:
    return _NAMES


def __getattr__(name: str) -> _Any:
    return getattr(_MESSAGES[name], name) if name in _MESSAGES else _missing("tf", __dir__)(name)
