"""Folds of columns on a GPU, as of batch norms of images: few passes, each by blocks that fill the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mixbackend.backends.codegen.ir.program import Program
from mixbackend.backends.codegen.ir.stages import StridedInput
from mixbackend.backends.codegen.lower.table import lower_region
from mixbackend.backends.codegen.schedule.schedule import schedule
from mixbackend.backends.codegen.targets.triton.compiler import Architecture
from mixbackend.backends.codegen.targets.triton.limits import Settings
from mixbackend.backends.codegen.targets.triton.printing import print_program, values_of
from mixbackend.backends.codegen.targets.triton.target import Hardware, TritonTarget
from mixbackend.contracts.torch_compat import fresh_fake_mode
from mixbackend.graph.trace import trace_region

pytest.importorskip("triton", reason="Triton is not installed")

HARDWARE = Hardware(Architecture("cuda", "90", 32), 132)
SHAPES = ((64, 112), (64, 56), (256, 56), (128, 28), (512, 28), (1024, 14), (512, 7), (2048, 7))
BATCH = 32


def norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> Any:
    found = torch.ops.aten._native_batch_norm_legit_functional.default(x, w, b, mean, var, True, 0.1, 1e-5)
    return torch.relu(found[0]), *found[1:]


def gradient(g: torch.Tensor, x: torch.Tensor, out: torch.Tensor, w: torch.Tensor, m: torch.Tensor) -> Any:
    g = torch.ops.aten.threshold_backward(g, out, 0)
    outputs = [True, True, True]
    return torch.ops.aten.native_batch_norm_backward(g, x, w, None, None, m, m, True, 1e-5, outputs)


def residual(g: torch.Tensor, h: torch.Tensor, *rest: torch.Tensor) -> Any:
    made = torch.ops.aten.threshold_backward(g + h, rest[1], 0)
    outputs = [True, True, True]
    w, m = rest[2:]
    return made, *torch.ops.aten.native_batch_norm_backward(made, rest[0], w, None, None, m, m, True, 1e-5, outputs)


def program_of(function: Callable[..., Any], images: int, vectors: int, channels: int, side: int) -> Program:
    """The program for a GPU, of channels-last images in bfloat16."""
    steps = (channels * side * side, 1, channels * side, channels)
    with fresh_fake_mode():
        sizes = (BATCH, channels, side, side)
        inputs = [torch.empty_strided(sizes, steps, dtype=torch.bfloat16, device="cuda") for _ in range(images)]
        inputs += [torch.empty_strided((channels,), (1,), device="cuda") for _ in range(vectors)]
        region = trace_region(function, inputs)
    target = TritonTarget(HARDWARE)
    return schedule(lower_region(region), target.traits())


def reads_of(program: Program) -> list[int]:
    """How many kernels read each of the images."""
    images = [item.name for item in program.inputs if isinstance(item, StridedInput) and len(item.type.sizes) == 4]
    return [sum(name in call.buffers for call in program.calls) for name in images]


@pytest.mark.parametrize(("channels", "side"), SHAPES)
def test_statistics_read_an_image_once_and_the_result_once_more(channels: int, side: int) -> None:
    program = program_of(norm, 1, 4, channels, side)
    assert len(program.calls) == 3, str(program)
    assert reads_of(program) == [2]


@pytest.mark.parametrize(("channels", "side"), SHAPES)
def test_gradients_read_each_image_twice(channels: int, side: int) -> None:
    program = program_of(gradient, 3, 2, channels, side)
    assert len(program.calls) == 3, str(program)
    assert reads_of(program) == [2, 2, 2]


@pytest.mark.parametrize(("channels", "side"), SHAPES)
def test_what_is_one_value_of_a_channel_is_computed_per_channel(channels: int, side: int) -> None:
    """Points read a mean, a share, a slope and a factor; what divides is done by the kernel that joins the pieces."""
    *folds, points = program_of(gradient, 3, 2, channels, side).calls
    assert [len(call.buffers) for call in folds if "div" in str(call.kernel)] == [len(folds[-1].buffers)]
    assert "div" not in str(points.kernel)
    images = 4
    assert len(points.buffers) - images <= 4, str(points.kernel)


@pytest.mark.parametrize(("channels", "side"), SHAPES)
def test_what_gradients_make_together_is_made_by_the_kernel_that_folds_it(channels: int, side: int) -> None:
    """It goes on beside the norm, so it is written: where its pieces are folded, and read once more."""
    program = program_of(residual, 4, 2, channels, side)
    assert len(program.calls) == 3, str(program)
    assert sorted(reads_of(program)) == [1, 1, 1, 2]


@pytest.mark.parametrize(("channels", "side"), SHAPES)
def test_blocks_fill_the_gpu_with_enough_under_way(channels: int, side: int) -> None:
    """Each unit has a few blocks, and all their threads together wait for at least 16 KiB at a time."""
    program = program_of(norm, 1, 4, channels, side)
    printed = print_program(program, Settings(HARDWARE.units))
    blocks = next(iter(values_of(printed)([int(value) for call in program.calls for value in call.parameters])))
    text = printed.texts[printed.places[0]]
    columns, rows = (int(part) for part in _block(text.body))
    assert blocks >= 2 * HARDWARE.units
    under_way = min(columns * rows, BATCH * channels * side * side // blocks) * 2 * blocks // HARDWARE.units
    assert under_way >= min(16 << 10, BATCH * channels * side * side * 2 // HARDWARE.units)
    assert columns * 2 >= 64, "neighbours fill whole sectors of memory"


@pytest.mark.sampled(9)
@pytest.mark.parametrize(("channels", "side"), SHAPES)
@pytest.mark.parametrize(("function", "images", "vectors"), [(norm, 1, 4), (gradient, 3, 2), (residual, 4, 2)])
def test_a_unit_holds_several_blocks(
    function: Callable[..., Any], images: int, vectors: int, channels: int, side: int
) -> None:
    """One that loads a whole column at once has a unit for itself: nothing is under way while it folds."""
    program = program_of(function, images, vectors, channels, side)
    printed = print_program(program, Settings(HARDWARE.units))
    text = printed.texts[printed.places[0]]
    columns, rows = (int(part) for part in _block(text.body))
    assert text.warps <= 8
    assert columns * rows * images <= 64 * 128, f"{columns} columns of {rows} rows of {images} images at once"
    assert text.warps * 32 * 64 >= columns * rows * images, "what a thread waits for fits into its registers"


@pytest.mark.parametrize(("rows", "is_whole"), [(4096, True), (8192, False)])
def test_short_columns_of_one_tensor_stay_whole(rows: int, is_whole: bool) -> None:
    """A unit has three blocks: registers hold 128 rows of each at once, and not 256."""
    with fresh_fake_mode():
        region = trace_region(lambda x: x.sum(0), [torch.empty((rows, 768), dtype=torch.bfloat16, device="cuda")])
    program = schedule(lower_region(region), TritonTarget(HARDWARE).traits())
    printed = print_program(program, Settings(HARDWARE.units))
    assert ("for r0_start in range" not in printed.texts[printed.places[0]].body) == is_whole


@pytest.mark.parametrize("rows", [2048, 6304])
def test_statistics_of_rows_do_not_turn_columns_into_rows(rows: int) -> None:
    """The gradient of a layer norm's weight folds columns; each row's mean and deviation lie along the fold."""

    def weights(g: torch.Tensor, x: torch.Tensor, m: torch.Tensor, d: torch.Tensor) -> Any:
        return (g * (x - m) * d).sum(0), g.sum(0)

    with fresh_fake_mode():
        values = [torch.empty((rows, 768), dtype=dtype, device="cuda") for dtype in (torch.bfloat16, torch.float32)]
        values += [torch.empty((rows, 1), device="cuda") for _ in range(2)]
        region = trace_region(weights, values)
    program = schedule(lower_region(region), TritonTarget(HARDWARE).traits())
    printed = print_program(program, Settings(HARDWARE.units))
    assert _block(printed.texts[printed.places[0]].body)[0] == "64"


def _block(body: str) -> tuple[str, str]:
    """Columns and rows that a block takes at a time."""
    ranges = [part.partition(")")[0] for part in body.split("tl.arange(0, ")[1:]]
    return ranges[0], ranges[1]
