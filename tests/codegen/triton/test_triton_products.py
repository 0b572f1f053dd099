"""Products of matrices: which kernels are such, their tiles, and machine code for GPUs that are not here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from triton_programs import HARDWARE, SETTINGS, backend

from mixbackend.backends.codegen.backend import CodegenBackend
from mixbackend.backends.codegen.targets.cpp.target import CppTarget
from mixbackend.backends.codegen.targets.triton.compiler import Architecture, compile_texts
from mixbackend.backends.codegen.targets.triton.limits import Settings
from mixbackend.backends.codegen.targets.triton.plan import candidates
from mixbackend.backends.codegen.targets.triton.printing import print_program
from mixbackend.backends.codegen.targets.triton.products import Tile, find_product, tiles_of
from mixbackend.backends.codegen.targets.triton.specialised import specialised
from mixbackend.contracts import Supported, Unsupported
from mixbackend.contracts.torch_compat import fresh_fake_mode
from mixbackend.graph.trace import trace_region

pytest.importorskip("triton", reason="Triton is not installed")

TYPES = (torch.float16, torch.bfloat16, torch.float32)
MACHINES = {
    "sm_80": (Architecture("cuda", "80", 32), Settings(108, 163 * 1024)),
    "sm_90": (HARDWARE.architecture, Settings(132, 227 * 1024)),
    "gfx942": (Architecture("hip", "gfx942", 64), Settings(304, 64 * 1024)),
}


def _program(function: Callable[..., Any], shapes: Sequence[tuple[int, ...]], dtype: torch.dtype) -> Any:
    with fresh_fake_mode():
        inputs = [torch.empty(shape, dtype=dtype) for shape in shapes]
    return backend().program(trace_region(function, inputs))


def _tiles(rows: int, inner: int, columns: int, settings: Settings, dtype: torch.dtype = torch.float16) -> list[Tile]:
    (call,) = _program(lambda x, w: x @ w, [(rows, inner), (inner, columns)], dtype).calls
    kernel = specialised(call.kernel, [int(value) for value in call.parameters])
    product = find_product(kernel)
    assert product is not None
    return tiles_of(product, kernel, settings)


def linear_gelu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w, b))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_large_products_have_machine_code(machine: str, dtype: torch.dtype) -> None:
    architecture, settings = MACHINES[machine]
    program = _program(linear_gelu, [(4096, 1024), (4096, 1024), (4096,)], dtype)
    (text,) = print_program(program, settings).texts
    (binary,) = compile_texts([text], architecture)
    assert binary.code.startswith(b"\x7fELF") and 0 < binary.shared <= settings.shared


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("sizes", [(2048, 3072, 768), (64, 64, 64), (8192, 1024, 4096)], ids=str)
def test_what_follows_is_in_the_same_kernel(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    rows, inner, columns = sizes
    shapes = [(rows, inner), (columns, inner), (columns,), (rows, columns)]
    program = _program(lambda x, w, b, r: F.silu(F.linear(x, w, b)) + r, shapes, dtype)
    assert len(program.calls) == 1


IMAGES = {
    "residual": (lambda x, w, b, r: F.conv2d(x, w, b) + r, (32, 960, 7, 7), 160),
    "wide": (lambda x, w, b, r: F.hardswish(F.conv2d(x, w, b)) + r, (32, 16, 112, 112), 64),
    "bottleneck": (lambda x, w, b, r: F.relu(F.conv2d(x, w, b) + r), (32, 256, 56, 56), 64),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", IMAGES)
def test_convolutions_of_one_point_are_products(name: str, machine: str) -> None:
    function, (images, channels, height, width), made = IMAGES[name]
    architecture, settings = MACHINES[machine]
    with fresh_fake_mode():
        shapes = [(images, channels, height, width), (made, channels, 1, 1), (made,), (images, made, height, width)]
        inputs = [torch.empty(shape, dtype=torch.bfloat16) for shape in shapes]
        inputs = [item.contiguous(memory_format=torch.channels_last) if item.dim() == 4 else item for item in inputs]
    region = trace_region(function, inputs)
    assert all(backend().judge(view) == Supported() for view in region.views)
    (call,) = backend().program(region).calls
    product = find_product(specialised(call.kernel, [int(value) for value in call.parameters]))
    assert product is not None and [int(loop.extent) for loop in product.rows] == [images * height * width]
    (text,) = print_program(backend().program(region), settings).texts
    (binary,) = compile_texts([text], architecture)
    assert "tl.dot" in text.body and 0 < binary.shared <= settings.shared


def test_processors_leave_convolutions_of_one_point_to_libraries() -> None:
    image = torch.ones(2, 8, 4, 4, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    (view,) = trace_region(F.conv2d, [image, torch.ones(8, 8, 1, 1, dtype=torch.bfloat16)]).views
    verdict = CodegenBackend(CppTarget()).judge(view)
    assert isinstance(verdict, Unsupported) and "product of matrices" in verdict.detail


def test_sums_over_windows_are_left_to_libraries() -> None:
    (view,) = trace_region(F.conv2d, [torch.ones(2, 8, 4, 4), torch.ones(8, 8, 3, 3)]).views
    verdict = backend().judge(view)
    assert isinstance(verdict, Unsupported)


def test_factors_are_rounded_to_tf32_where_torch_is_told_so() -> None:
    program = _program(linear_gelu, [(256, 128), (256, 128), (256,)], torch.float32)
    exact, rounded = (print_program(program, replace(SETTINGS, tf32=tf32)).texts[0].body for tf32 in (False, True))
    assert 'input_precision="ieee"' in exact and 'input_precision="tf32"' in rounded
    halves = _program(linear_gelu, [(256, 128), (256, 128), (256,)], torch.float16)
    assert print_program(halves, SETTINGS) == print_program(halves, replace(SETTINGS, tf32=True))


def test_torch_s_flag_is_part_of_the_fingerprint(precision: Callable[[str], None]) -> None:
    found = []
    for name in ("highest", "high"):
        precision(name)
        found.append(backend().target.fingerprint())
    assert "float32" in found[0] and "tf32" in found[1]


def test_tiles_fit_the_product_and_the_hardware() -> None:
    large, slim = _tiles(4096, 4096, 4096, MACHINES["sm_90"][1]), _tiles(8, 4096, 4096, MACHINES["sm_90"][1])
    assert large[0].rows * large[0].columns >= 128 * 128
    assert max(tile.rows for tile in slim) <= 32
    small = _tiles(4096, 4096, 4096, Settings(132, 48 * 1024))
    assert all((tile.rows + tile.columns) * tile.inner * 2 * tile.stages <= 48 * 1024 for tile in small)
    assert _tiles(64, 16, 64, SETTINGS)[0].inner == 16


def test_few_points_are_spread_over_the_units() -> None:
    tile = _tiles(256, 1024, 256, MACHINES["sm_90"][1])[0]
    assert (256 // tile.rows) * (256 // tile.columns) >= 16


def test_candidates_begin_with_the_model_s_choice_and_differ() -> None:
    (call,) = _program(linear_gelu, [(512, 256), (512, 256), (512,)], torch.float16).calls
    kernel = specialised(call.kernel, [int(value) for value in call.parameters])
    plans = candidates(kernel, SETTINGS, False)
    product = find_product(kernel)
    assert product is not None and plans[0].tile == tiles_of(product, kernel, SETTINGS)[0]
    assert len(plans) == len(set(plans)) > 4


def test_what_no_hardware_multiplies_is_refused() -> None:
    for dtype in (torch.float64, torch.int64):
        x = torch.ones(4, 4, dtype=dtype)
        (view,) = trace_region(lambda x, y: x @ y, [x, x]).views
        assert isinstance(backend().judge(view), Unsupported)
    (view,) = trace_region(lambda x, y: x @ y, [torch.ones(0, 4), torch.ones(4, 4)]).views
    assert "product of nothing" in str(backend().judge(view))


def test_processors_leave_products_of_unknown_matrices_to_libraries() -> None:
    (view,) = trace_region(lambda x, y: x @ y, [torch.ones(4, 4), torch.ones(4, 4)]).views
    verdict = CodegenBackend(CppTarget()).judge(view)
    assert isinstance(verdict, Unsupported) and "packed anew" in verdict.detail
    assert backend().judge(view) == Supported()


def test_unknown_sizes_have_a_tile_and_masks() -> None:
    region = trace_region(lambda x, w: x @ w, [torch.ones(30, 64), torch.ones(64, 48)], dynamic=True)
    printed = print_program(backend().program(region), SETTINGS)
    assert "tl.dot" in printed.texts[0].body and "x0_in & x1_in" in printed.texts[0].body
    assert dict(printed.texts[0].signature)["p0"] == "i32" and dict(printed.wide[0].signature)["p0"] == "i64"
