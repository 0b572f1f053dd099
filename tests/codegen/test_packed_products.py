"""Products on processors: packed once, with a bias inside, against the interpreter, eager and float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, reject
from product_programs import (
    BACKEND,
    Steps,
    check,
    drawn,
    hold_compiled,
    hold_interpreted,
    names,
    parted,
    refusal,
    traced,
    values,
    weights,
)
from region_arguments import arguments
from torch import Tensor

from mixbackend.backends.codegen.ir.kernel import TemplateKernel
from mixbackend.contracts import Region, Unsupported

functional = torch.nn.functional


def linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return functional.linear(x, w, b)


def test_a_linear_layer_is_one_kernel_once_its_weight_is_packed() -> None:
    region, program = check(linear, [values(3, 5, 40), *weights((50, 40), (50,))], (1, 2))
    assert names(program) == ["nest", "product"]
    parts = parted(region, program)
    assert names(parts.first) == ["nest"] and names(parts.rest) == ["product"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("columns", [1, 48, 50, 64, 200])
def test_columns_of_every_number(columns: int) -> None:
    check(linear, [values(7, 30), *weights((columns, 30), (columns,))], (1, 2))


@pytest.mark.nightly
def test_layers_follow_one_another() -> None:
    def block(x: Tensor, s: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        normal = functional.layer_norm(x, [48], s)
        return x + functional.linear(functional.gelu(functional.linear(normal, w1, b1)), w2, b2)

    constants = weights((48,), (96, 48), (96,), (48, 96), (48,))
    region, program = check(block, [values(2, 9, 48), *constants], (1, 2, 3, 4, 5))
    parts = parted(region, program)
    assert names(parts.rest).count("product") == 2
    assert names(parts.rest) == ["nest", "product", "product"], "a norm; gelu and the residual end the products"


def test_what_has_no_bias_or_another_one() -> None:
    (w,) = weights((30, 20))
    x, y = values(6, 30), values(6, 20, seed=9)
    assert "product" in names(check(lambda x, w: x @ w, [x, w], (1,))[1])
    check(lambda x, w, y: torch.addmm(y, x, w), [x, w, y], (1,))
    check(lambda x, w, y: torch.addmm(y, x, w, beta=0.5, alpha=2.0), [x, w, y[0]], (1, 2))
    check(lambda x, w, y: torch.addmm(y, x, w), [x, w, y[:, :1].contiguous()], (1,))
    check(lambda x, w, y: torch.addmm(y, x, w), [x, w, values(1)], (1, 2))


def test_sums_that_others_read_as_well_keep_their_bias_outside() -> None:
    def both(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        made = x @ w
        return made, made + b

    _, program = check(both, [values(6, 30), *weights((30, 20), (20,))], (1, 2))
    assert names(program).count("product") == 1


def test_a_row_that_is_computed_is_added_too() -> None:
    check(lambda x, w, b: x @ w + torch.exp(b), [values(6, 30), *weights((30, 20), (20,))], (1,))
    check(lambda x, w: x @ w + x.sum(0)[:20], [values(6, 30), *weights((30, 20))], (1,))


def test_layouts_of_the_left_matrix() -> None:
    (w,) = weights((24, 50))
    check(lambda x, w: x.t() @ w, [values(24, 7), w], (1,))
    check(lambda x, w: x[::2, 1::2] @ w, [values(14, 48), w], (1,))
    check(lambda x, w: x.expand(9, 24) @ w, [values(1, 24), w], (1,))
    check(lambda x, w: torch.relu(x).permute(0, 2, 1, 3).reshape(10, 24) @ w, [values(2, 4, 5, 6), w], (1,))
    check(lambda x, w: torch.relu(x).flatten(1).t() @ w, [values(24, 3, 3), w], (1,))


def test_layouts_of_the_right_matrix_and_the_result() -> None:
    x = values(6, 30)
    check(lambda x, w: x @ w.t(), [x, *weights((50, 30))], (1,))
    check(lambda x, w: x @ w[:, ::2], [x, *weights((30, 40))], (1,))
    check(lambda x, w: (x @ w).t(), [x, *weights((30, 40))], (1,))
    check(lambda x, w: (x @ w).reshape(2, 3, 4, 10).transpose(1, 2).contiguous(), [x, *weights((30, 40))], (1,))
    check(lambda x, w: (x @ w)[:, 3:20] * 2, [x, *weights((30, 40))], (1,))


def test_rows_follow_products_and_not_what_they_are_added_to() -> None:
    """Tokens of an image come column by column; from the first product on they lie row by row."""

    def tokens(image: Tensor, s: Tensor, w: Tensor, b: Tensor) -> Tensor:
        x = torch.tanh(image).flatten(2).transpose(1, 2)
        return x + functional.linear(functional.layer_norm(x, [48], s), w, b)

    _, program = check(tokens, [values(1, 48, 5, 5), *weights((48,), (48, 48), (48,))], (1, 2, 3))
    (call,) = (call for call in program.calls if isinstance(call.kernel, TemplateKernel))
    numbers = dict(zip(call.kernel.parameters, call.parameters, strict=True))
    for view in (call.kernel.operands[0], call.kernel.results[0]):
        assert view is not None
        strides = [numbers[stride] for size, stride in zip(view.sizes, view.strides, strict=True) if numbers[size] > 1]
        assert strides == [48, 1]


def test_what_a_product_makes_is_read_in_other_pieces() -> None:
    """Windows of an image: rows of one product are batches of the next in another way."""

    def windows(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        first = functional.linear(x, w).reshape(3, 4, 16)
        return functional.linear(functional.gelu(first), v) + functional.linear(first.reshape(4, 3, 16), v).reshape(
            3, 4, 7
        )

    _, program = check(windows, [values(2, 6, 24), *weights((16, 24), (7, 16))], (1, 2))
    assert names(program).count("product") == 3


def test_unknown_numbers_of_rows() -> None:
    constants = weights((50, 40), (50,))
    region = traced(linear, [values(6, 40), *constants], (1, 2), dynamic=True)
    if any(isinstance(BACKEND.judge(view), Unsupported) for view in region.views):
        pytest.fail("rows of unknown number are refused")
    compiled = BACKEND.compile(region)
    for rows in (6, 2, 33):
        x = values(rows, 40)
        (result,) = compiled.run(arguments(region, [x, *constants]))
        torch.testing.assert_close(result, linear(x, *constants))


@dataclass(frozen=True)
class Chain(Steps):
    """Steps over rows of a batch, [batch, row, column]."""

    sizes: tuple[int, int, int]
    steps: tuple[tuple[str, int], ...]
    scale: float = 0.3

    def run(self, x: Tensor, weight: Callable[..., Tensor]) -> Tensor:
        before = x
        for name, size in self.steps:
            width = x.shape[-1]
            if name == "linear":
                before, x = x, functional.linear(x, weight(size, width), weight(size))
            elif name == "bare":
                before, x = x, functional.linear(x, weight(size, width))
            elif name == "rows":
                flat = torch.addmm(weight(size), x.reshape(-1, width), weight(width, size))
                before, x = x, flat.view(*x.shape[:-1], size)
            elif name == "norm":
                x = functional.layer_norm(x, [width])
            elif name == "gelu":
                x = functional.gelu(x)
            elif name == "turn":
                x = x.transpose(size % 2, 1 + size % 2)
            elif name == "merge":
                x = x.reshape(1, -1, width)
            elif before.shape == x.shape:
                x = x + before
        return x


PRODUCTS = ("linear", "bare", "rows")
OTHERS = ("norm", "gelu", "turn", "merge", "residual")


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    """Products with what models put between them."""
    sizes = (draw(st.integers(1, 3)), draw(st.integers(1, 6)), draw(st.sampled_from([1, 16, 50])))
    widths = st.sampled_from([1, 16, 48, 50, 67])
    step = st.tuples(st.sampled_from([*PRODUCTS, *OTHERS]), widths)
    steps = draw(st.lists(step, max_size=6))
    return Chain(sizes, (*steps, (draw(st.sampled_from(PRODUCTS)), draw(widths)), *draw(st.lists(step, max_size=2))))


def claimed(chain: Chain) -> tuple[Region, list[Any]]:
    """The region of a chain, and what it is called with; torch makes batches of products of some transposed values."""
    region, ordered = chain.region()
    if any(isinstance(BACKEND.judge(view), Unsupported) for view in region.views):
        reject()
    return region, ordered


@drawn(8, 40, 1000)
@given(chains())
def test_chains_of_products_and_other_steps(chain: Chain) -> None:
    hold_interpreted(*claimed(chain))


@drawn(2, 3, 100)
@given(chains())
def test_compiled_chains(chain: Chain) -> None:
    hold_compiled(*claimed(chain))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("terms", "columns"), [(1, 1), (7, 1), (30, 20), (65, 49), (400, 130)])
def test_one_row_of_16_bit_floats(dtype: torch.dtype, terms: int, columns: int) -> None:
    x, (w, bias) = values(1, terms).to(dtype), [item.to(dtype) for item in weights((columns, terms), (columns,))]
    region, program = check(lambda x, w: functional.linear(x, w), [x, w], (1,))
    kernels = [call.kernel for call in parted(region, program).rest.calls]
    (product,) = (kernel for kernel in kernels if isinstance(kernel, TemplateKernel))
    assert product.buffers[1].dtype == dtype, "the weight is read as it is stored"
    check(lambda x, w: x @ w, [x, w.t().contiguous()], (1,))
    check(lambda x, w, b: functional.gelu(functional.linear(x, w, b)), [x, w, bias], (1, 2))
    check(lambda x, w, b: torch.addmm(b, x, w.t(), beta=0.5, alpha=2.0), [x, w, bias], (1, 2))
    strided = values(1, terms * 2).to(dtype)[:, ::2]
    check(lambda x, w, b: functional.linear(x, w, b) + x.sum(), [strided, w, bias], (1, 2))


def test_what_is_left_to_libraries() -> None:
    x, (w,) = values(6, 30), weights((30, 20))
    assert (
        refusal(torch.mm, [x, w], ()) == "declined: the second matrix, or the weight, would be packed anew at each call"
    )
    assert refusal(torch.mm, [w.t(), x.t()], (0,)).startswith("declined"), "the first one is not what is packed"
    assert refusal(torch.mm, [x.bfloat16(), w.bfloat16()], (1,)) == "dtype: a product of matrices of torch.bfloat16"
    batches = [values(2, 6, 30), values(2, 30, 20)]
    assert refusal(torch.bmm, batches, (1,)) == "argument: the target has no products of matrices"


def test_a_product_of_a_product_that_is_read_by_channels() -> None:
    """The second one sums over a dimension that is no column of the first."""

    def block(x: Tensor, w: Tensor, kernel: Tensor) -> Tensor:
        images = (x @ w).contiguous(memory_format=torch.channels_last)
        return functional.conv2d(images, kernel, stride=2)

    region, program = check(block, [values(6, 3, 1, 6), *weights((6, 4), (2, 3, 1, 1))], (1, 2))
    assert names(parted(region, program).rest).count("product") == 2


def test_a_product_of_a_convolution_along_its_places() -> None:
    def block(x: Tensor, kernel: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return functional.linear(functional.conv1d(x, kernel), w, b)

    check(block, [values(4, 2, 16), *weights((3, 2, 2), (5, 15), (5,))], (1, 2, 3))
