"""Op levels: the closed lists of operators that backends speak.

Place: below ``op_lowering``, which makes ops of one level out of planning-level ops, and beside ``Traits.level``.
Input: a level. Output: the names of its operators, by family; ``docs/reference/op_levels.md`` is written from here.
Invariants: the list of a level is everything that a lowered op can become; what torch would leave over beyond it is not
lowered, but refused. A list is torch's own small operators and those of its library that torch takes apart nowhere.
Besides these a lowered region holds what no backend is asked about: ``getitem`` of results, and arithmetic of sizes.
Non-goals: random numbers, writes, collectives, memory as it comes, and sizes that values decide are of no lower level.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Literal, get_args

OpLevel = Literal["aten", "core_aten", "prims"]
"""At which level a backend is asked for verdicts and gets its regions: as graphs are captured and planned (``aten``),
in torch's core ATen, or in torch's prims."""

LOWERING = 1
"""Rises when an op becomes other ops of a lower level than before, with the same torch."""

LEVELS: tuple[OpLevel, ...] = get_args(OpLevel)

_PRIMS = {
    "pointwise, of one value": (
        "abs acos acosh asin asinh atan atanh bessel_i0 bessel_i0e bessel_i1 bessel_i1e bessel_j0 bessel_j1 bitwise_not"
        " cbrt ceil conj_physical cos cosh digamma erf erf_inv erfc erfcx exp exp2 expm1 floor frexp imag isfinite"
        " lgamma log log10 log1p log2 ndtri neg real reciprocal round rsqrt sign signbit sin sinh spherical_bessel_j0"
        " sqrt tan tanh trunc"
    ),
    "pointwise, of several values": (
        "add atan2 bitwise_and bitwise_or bitwise_xor div eq fmax fmin fmod gcd ge gt hypot igamma igammac le lt"
        " maximum minimum mul ne nextafter pow remainder shift_left shift_right_arithmetic sub where zeta"
    ),
    "types and copies": "clone convert_element_type device_put",
    "shapes": "broadcast_in_dim cat collapse collapse_view reshape rev split_dim squeeze transpose view_of",
    "sums and extremes": "amax amin prod sum var xor_sum",
    "new values": "full full_like iota scalar_tensor",
}

_LIBRARY = {
    "products": (
        "mm bmm convolution convolution_backward _trilinear addbmm _int_mm _grouped_mm _scaled_mm _weight_int8pack_mm"
        " _weight_int4pack_mm _weight_int4pack_mm_for_cpu mm.dtype bmm.dtype"
    ),
    "attention on accelerators": (
        "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward"
        " _scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward"
        " _scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward"
    ),
    "places": (
        "slice.Tensor index.Tensor index_put index_reduce gather scatter.src scatter.value scatter.reduce"
        " scatter.value_reduce scatter_add scatter_reduce.two masked_scatter masked_scatter_backward put"
        " searchsorted.Tensor searchsorted.Scalar nonzero_static"
    ),
    "order": (
        "argmax argmin max.dim min.dim cummax cummin sort sort.stable topk kthvalue median median.dim nanmedian"
        " nanmedian.dim mode logcumsumexp"
    ),
    "bags of rows": (
        "_embedding_bag _embedding_bag_forward_only _embedding_bag_backward _embedding_bag_dense_backward"
        " _embedding_bag_per_sample_weights_backward segment_reduce _segment_reduce_backward"
    ),
    "pooling": (
        "avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward _adaptive_avg_pool2d_backward"
        " _adaptive_avg_pool3d _adaptive_avg_pool3d_backward adaptive_max_pool2d adaptive_max_pool2d_backward"
        " adaptive_max_pool3d_backward fractional_max_pool2d fractional_max_pool2d_backward fractional_max_pool3d"
        " fractional_max_pool3d_backward max_pool3d_with_indices_backward"
    ),
    "resizing": (
        "grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward _upsample_bilinear2d_aa"
        " _upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward"
        " upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward"
        " _upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward"
        " upsample_linear1d_backward upsample_bilinear2d_backward upsample_trilinear3d_backward"
        " upsample_bicubic2d_backward replication_pad1d_backward replication_pad2d_backward"
        " replication_pad3d_backward"
    ),
    "complex numbers": "complex polar view_as_complex view_as_real _conj _conj_physical angle",
    "Fourier transforms": "_fft_c2c _fft_r2c _fft_c2r",
    "linear algebra": (
        "cholesky cholesky_inverse cholesky_solve geqrf linalg_cholesky_ex _linalg_det _linalg_eigh _linalg_eigvals"
        " linalg_eig linalg_householder_product linalg_inv_ex linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq"
        " linalg_lu linalg_lu_factor_ex linalg_lu_solve linalg_matrix_exp linalg_pinv.atol_rtol_tensor linalg_qr"
        " _linalg_slogdet _linalg_solve_ex linalg_solve_triangular _linalg_svd lu_unpack ormqr triangular_solve"
    ),
    "distances and losses": (
        "_cdist_forward _cdist_backward _pdist_forward _pdist_backward multi_margin_loss_backward"
        " multilabel_margin_loss_backward _ctc_loss _ctc_loss.Tensor _ctc_loss_backward _ctc_loss_backward.Tensor"
    ),
    "counts": (
        "histc histogram.bin_ct histogram.bins_tensor _histogramdd_bin_edges _histogramdd_from_bin_cts"
        " _histogramdd_from_bin_tensors"
    ),
    "special functions": (
        "polygamma special_airy_ai special_bessel_y0 special_bessel_y1 special_chebyshev_polynomial_t"
        " special_chebyshev_polynomial_u special_chebyshev_polynomial_v special_chebyshev_polynomial_w"
        " special_hermite_polynomial_h special_hermite_polynomial_he special_laguerre_polynomial_l"
        " special_legendre_polynomial_p special_modified_bessel_i0 special_modified_bessel_i1"
        " special_modified_bessel_k0 special_modified_bessel_k1 special_scaled_modified_bessel_k0"
        " special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t"
        " special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v"
        " special_shifted_chebyshev_polynomial_w"
    ),
}
"""Operators of torch's library that no decomposition takes apart, or that have parts without an operator."""

_CORE = {
    "pointwise": (
        "abs acos acosh add.Scalar add.Tensor asin asinh atan atan2 atanh bitwise_and.Scalar bitwise_and.Tensor"
        " bitwise_not bitwise_or.Scalar bitwise_or.Tensor bitwise_xor.Scalar bitwise_xor.Tensor ceil clamp clamp.Tensor"
        " cos cosh div.Scalar div.Scalar_mode div.Tensor div.Tensor_mode elu eq.Scalar eq.Tensor erf exp expm1 floor"
        " fmod.Scalar fmod.Tensor ge.Scalar ge.Tensor gelu gt.Scalar gt.Tensor hardtanh isinf isnan le.Scalar le.Tensor"
        " leaky_relu log log10 log1p log2 logical_and logical_not logical_or logical_xor lt.Scalar lt.Tensor maximum"
        " minimum mul.Scalar mul.Tensor ne.Scalar ne.Tensor neg pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor"
        " reciprocal relu remainder.Scalar remainder.Tensor round rsqrt sigmoid sign sin sinh sqrt sub.Scalar"
        " sub.Tensor tan tanh trunc where.self"
    ),
    "types and copies": "_to_copy clone copy",
    "shapes": (
        "alias cat constant_pad_nd diagonal expand flip permute reflection_pad1d reflection_pad2d reflection_pad3d"
        " repeat replication_pad2d replication_pad3d reshape select.int select_scatter slice_scatter split_with_sizes"
        " squeeze.dim squeeze.dims unsqueeze"
    ),
    "sums and extremes": (
        "amax amin any any.dim any.dims cumsum mean mean.dim prod prod.dim_int sum.dim_IntList var.correction var.dim"
    ),
    "new values": "arange.start_step fill.Scalar full full_like scalar_tensor",
    "products": "addmm",
    "places": "embedding embedding_dense_backward index_select col2im",
    "normalisation": (
        "_log_softmax _softmax native_group_norm native_group_norm_backward native_layer_norm"
        " native_layer_norm_backward _native_batch_norm_legit.no_stats _native_batch_norm_legit_no_training"
    ),
    "pooling": (
        "_adaptive_avg_pool2d adaptive_avg_pool1d avg_pool1d max_pool2d_with_indices max_pool2d_with_indices_backward"
        " max_pool3d_with_indices"
    ),
    "resizing": "grid_sampler_2d upsample_bilinear2d.vec upsample_nearest2d.vec",
}
"""Torch's own list, the tag ``core``, but for what no lower level has; ``view`` is written ``reshape``."""

_BEYOND_CORE = {
    "pointwise": (
        "bitwise_left_shift.Tensor bitwise_right_shift.Tensor copysign.Tensor digamma erfc erfinv exp2 fmax fmin"
        " frexp.Tensor gcd hardshrink_backward hypot i0 igamma igammac lcm ldexp.Tensor lgamma nextafter"
        " round.decimals rrelu_with_noise_backward signbit softshrink_backward"
    ),
    "special functions": (
        "special_bessel_j0 special_bessel_j1 special_erfcx special_i0e special_i1 special_i1e special_ndtri"
        " special_spherical_bessel_j0 special_zeta"
    ),
    "shapes": "diagonal_scatter narrow_copy permute_copy tril_indices triu_indices unbind_copy.int unfold view_copy",
    "sums and extremes": "cumprod dist linalg_vector_norm max min var_mean.correction",
    "products": "addmv",
    "places": "bucketize.Tensor",
    "normalisation": "_native_batch_norm_legit_functional",
    "pooling": "adaptive_max_pool3d",
    "resizing": "upsample_bicubic2d upsample_bilinear2d upsample_trilinear3d",
}
"""What torch's decompositions to core ATen leave as it is, without the tag."""


def families(level: OpLevel) -> Mapping[str, tuple[str, ...]]:
    """The operators of a lower level, by family, full names in their order.

    Raises:
        ValueError: the level is ``aten``: it is every operator that a captured graph may hold, see ``operators_of``.
    """
    if level == "prims":
        return _named(("prims", _PRIMS), ("aten", _LIBRARY))
    if level == "core_aten":
        return _named(("aten", _CORE), ("aten", _BEYOND_CORE), ("aten", _LIBRARY))
    raise ValueError(f"{level!r} is not a lower level: core_aten or prims")


@cache
def operators_of(level: OpLevel) -> frozenset[str]:
    """Full names of the operators of a level.

    Those of ``aten`` are what torch's registry has here: its operators that write nothing and are not made of others,
    and ``reshape``.
    """
    if level != "aten":
        return frozenset(name for names in families(level).values() for name in names)
    from mixbackend.contracts.torch_compat import kernels_are_composite, pure_operators

    found = {str(operator) for operator in pure_operators() if not kernels_are_composite(operator)}
    return frozenset(found - {"aten.view.default", "aten._unsafe_view.default"} | {"aten.reshape.default"})


def _named(*tables: tuple[str, Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for library, table in tables:
        for family, text in table.items():
            names = [name if "." in name else f"{name}.default" for name in text.split()]
            found[family] = tuple(sorted({*found.get(family, ()), *(f"{library}.{name}" for name in names)}))
    return found
