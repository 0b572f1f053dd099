"""Coarse kinds of work: rows of the rate tables, and what "fuses with" is said about.

Place: read by the cost model, by probes and by fusion declarations.
Invariants: every operator has exactly one class; unknown operators, and those of other libraries, are ``"other"``. What
else decides how fast an op runs (layout, few channels per group, a known weight) is not its class, see
``contracts.rate_rows``.
"""

from __future__ import annotations

from typing import Literal, get_args

OpClass = Literal[
    "matmul",
    "convolution",
    "attention",
    "normalization",
    "softmax",
    "reduction",
    "pointwise",
    "gather",
    "scatter",
    "pooling",
    "view",
    "copy",
    "factory",
    "sort",
    "random",
    "other",
]
OP_CLASSES: tuple[str, ...] = get_args(OpClass)

_MEMBERS: dict[OpClass, str] = {
    "matmul": "mm addmm bmm baddbmm addbmm linear matmul dot mv addmv _scaled_mm _addmm_activation "
    "_weight_int4pack_mm_for_cpu",
    "convolution": "convolution convolution_backward _convolution convolution_overrideable",
    "attention": "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward "
    "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward "
    "_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward "
    "scaled_dot_product_attention",
    "normalization": "native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward "
    "_native_batch_norm_legit _native_batch_norm_legit_no_training _native_batch_norm_legit_functional "
    "native_batch_norm native_batch_norm_backward batch_norm_backward _fused_rms_norm _fused_rms_norm_backward "
    "cudnn_batch_norm cudnn_batch_norm_backward",
    "softmax": "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data _safe_softmax logsumexp",
    "reduction": "sum mean amax amin max min prod any all argmax argmin var var_mean std std_mean norm "
    "linalg_vector_norm cumsum cumprod nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward "
    "count_nonzero logcumsumexp cummax cummin median",
    "gather": "embedding gather index index_select _unsafe_index take slice_backward select_backward "
    "_unsafe_masked_index",
    "scatter": "embedding_dense_backward scatter scatter_add scatter_reduce index_put _unsafe_index_put index_add "
    "index_copy index_copy_ index_put_ select_scatter slice_scatter as_strided_scatter masked_scatter index_fill "
    "diagonal_scatter "
    "_unsafe_masked_index_put_accumulate",
    "pooling": "max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward avg_pool1d "
    "avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d adaptive_max_pool2d "
    "max_pool3d_with_indices upsample_nearest2d upsample_nearest2d_backward upsample_bilinear2d upsample_nearest1d "
    "upsample_bilinear2d_backward upsample_bicubic2d im2col col2im constant_pad_nd reflection_pad1d reflection_pad2d "
    "reflection_pad2d_backward replication_pad2d replication_pad2d_backward grid_sampler_2d _upsample_bilinear2d_aa",
    "view": "view reshape _unsafe_view t transpose permute expand squeeze unsqueeze slice select split "
    "split_with_sizes unbind detach alias as_strided diagonal unfold view_as_real view_as_complex real imag "
    "_reshape_alias lift lift_fresh movedim swapaxes narrow getitem numpy_T mT broadcast_in_dim split_dim collapse "
    "collapse_view view_of",
    "copy": "clone _to_copy cat stack copy repeat flip roll contiguous lift_fresh_copy copy_ tril triu rot90 "
    "constant_pad pixel_shuffle pixel_unshuffle channel_shuffle convert_element_type device_put rev",
    "factory": "iota full zeros ones empty arange scalar_tensor zeros_like ones_like full_like empty_like new_zeros "
    "new_ones new_full new_empty new_empty_strided empty_strided linspace eye tril_indices triu_indices "
    "empty_permuted",
    "sort": "sort topk argsort msort kthvalue unique searchsorted bucketize unique_consecutive",
    "random": "rand randn randint rand_like randn_like randint_like bernoulli native_dropout randperm normal "
    "normal_functional uniform multinomial exponential rrelu_with_noise_functional",
    "other": "nonzero masked_select _local_scalar_dense item _fft_r2c _fft_c2r _fft_c2c _cdist_forward linalg_inv_ex",
    "pointwise": "",
}
_CLASS_OF = {name: op_class for op_class, names in _MEMBERS.items() for name in names.split()}

_POINTWISE_NAMES = """
add sub mul div rsub neg abs sign reciprocal sqrt rsqrt square exp exp2 expm1 log log2 log10 log1p pow sin cos
tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh erf erfc erfinv sigmoid logit relu relu6 leaky_relu
elu selu celu gelu silu mish softplus hardtanh hardswish hardsigmoid hardshrink softshrink log_sigmoid_forward
prelu threshold clamp clamp_min clamp_max minimum maximum fmin fmax fmod remainder floor ceil round trunc frac
floor_divide where masked_fill eq ne lt le gt ge logical_and logical_or logical_not logical_xor bitwise_and
bitwise_or bitwise_not bitwise_xor bitwise_left_shift bitwise_right_shift isnan isinf isfinite lerp addcmul
addcdiv fill polygamma digamma lgamma special_xlog1py xlogy nan_to_num signbit copysign hypot sgn glu
gelu_backward silu_backward sigmoid_backward tanh_backward threshold_backward hardtanh_backward
hardswish_backward hardsigmoid_backward leaky_relu_backward elu_backward softplus_backward mish_backward
log_sigmoid_backward glu_backward native_dropout_backward mse_loss mse_loss_backward smooth_l1_loss huber_loss
binary_cross_entropy binary_cross_entropy_backward logit_backward erf_inv shift_left shift_right_arithmetic
"""
_POINTWISE = frozenset(_POINTWISE_NAMES.split())


_TORCHS_OWN = frozenset({"aten", "prims"})
"""Namespaces in which names mean what the tables above say."""


def op_class_of(op: str) -> OpClass:
    """Class of a full operator name (``aten.add.Tensor`` -> ``pointwise``); ``other`` of what is not torch's own.

    A library may call an operator of its own ``mylib.view``: its name says nothing about its work.
    """
    namespace, _, rest = op.partition(".")
    if rest and namespace not in _TORCHS_OWN:
        return "other"
    base = rest.split(".")[0] if rest else op
    if base in _CLASS_OF:
        return _CLASS_OF[base]
    return "pointwise" if base in _POINTWISE else "other"
