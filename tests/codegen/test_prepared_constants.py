"""What kernels compute from constants alone is computed when a region is bound, once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from product_programs import parted
from torch import Tensor

from mixbackend.backends.codegen import CodegenBackend
from mixbackend.backends.codegen.artifact import RegionArtifact
from mixbackend.backends.codegen.interpret.program import interpret_program
from mixbackend.backends.codegen.ir.check import check_program
from mixbackend.backends.codegen.ir.program import Program
from mixbackend.backends.codegen.prepared import prepare
from mixbackend.contracts import CodegenError, InputRole, Region
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.trace import trace_region

functional = torch.nn.functional
CONSTANT = PlaceholderRole(InputRole.CONSTANT)


def _layers(image: Tensor, first: Tensor, bias: Tensor, second: Tensor) -> Tensor:
    hidden = functional.relu(functional.conv2d(image, first, bias, 1, 1, 1, 32))
    return functional.conv2d(hidden, second, None, 2, 2, 1, 32)


def _operands() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    sizes = [(1, 32, 20, 20), (32, 1, 3, 3), (32,), (32, 1, 5, 5)]
    image, *weights = (torch.randn(each, generator=generator) for each in sizes)
    return [image.contiguous(memory_format=torch.channels_last), *weights]


def _region(constants: Sequence[int]) -> Region:
    return trace_region(_layers, _operands(), roles=dict.fromkeys(constants, CONSTANT))


def _program(constants: Sequence[int] = (1, 2, 3)) -> tuple[Program, frozenset[str]]:
    region = _region(constants)
    return CodegenBackend().program(region), frozenset(region.inputs[place].name for place in constants)


def test_a_program_is_taken_apart_where_kernels_read_constants_alone() -> None:
    program, constants = _program()
    assert [len(call.buffers) for call in program.calls] == [2, 2, 5], "two weights are laid out first"
    parts = prepare(program, constants)
    assert parts is not None
    assert len(parts.first.calls) == len(parts.first.outputs) == 2 and len(parts.rest.calls) == 1
    assert parts.places == (1, 3), "the bias is used as it is"
    for part in (parts.first, parts.rest):
        check_program(part)
    assert set(parts.first.kernels) | set(parts.rest.kernels) == set(program.kernels), "nothing more to compile"
    inputs = _operands()
    made = interpret_program(parts.first, [inputs[place] for place in parts.places])
    (whole,), (rest,) = interpret_program(program, inputs), interpret_program(parts.rest, [*inputs, *made])
    assert torch.equal(whole, rest)


def test_the_rest_has_no_memory_for_what_was_prepared() -> None:
    def layers(rows: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return functional.linear(functional.softmax(functional.linear(rows, first), -1), second)

    operands = [torch.randn(32, 256), torch.randn(512, 256), torch.randn(256, 512)]
    region = trace_region(layers, operands, roles=dict.fromkeys((1, 2), CONSTANT))
    program = CodegenBackend().program(region)
    parts = parted(region, program)
    assert len(parts.first.calls) == 2
    check_program(parts.rest)
    # Two matrices of 32 rows, which are alive at once, and not the weights.
    assert parts.rest.workspace_bytes <= 2 * 32 * 512 * 4 < program.workspace_bytes


def test_what_reads_other_values_stays() -> None:
    program, constants = _program((3,))
    parts = prepare(program, constants)
    assert parts is not None and parts.places == (3,) and len(parts.rest.calls) == 2
    assert prepare(program, frozenset()) is None
    assert prepare(program, frozenset({program.inputs[2].name})) is None


def test_outputs_and_symbolic_sizes_are_never_prepared() -> None:
    weight = torch.randn(16, 8)
    region = trace_region(lambda w: torch.exp(w), [weight], roles={0: CONSTANT})
    assert prepare(CodegenBackend().program(region), frozenset({region.inputs[0].name})) is None

    def summed(value: Tensor, w: Tensor) -> Tensor:
        return value * torch.exp(w).sum(0).softmax(0)

    dynamic = trace_region(summed, [torch.randn(4, 8), weight], dynamic=True, roles={1: CONSTANT})
    assert prepare(CodegenBackend().program(dynamic), frozenset({dynamic.inputs[1].name})) is None


def test_bound_code_holds_its_constants_and_does_not_look_at_those_of_a_call() -> None:
    compiled = CodegenBackend().compile(_region((1, 2, 3)))
    inputs = _operands()
    expected = _layers(*inputs)
    (live,) = compiled.run(inputs)
    torch.testing.assert_close(live, expected)
    assert compiled.bind is not None
    bound = compiled.bind([None, *inputs[1:]])
    other = compiled.bind([None, *(2 * value for value in inputs[1:])])
    assert bound.constant_bytes >= 4 * 32 * (9 + 25)
    for _ in range(2):
        (result,) = bound.run([inputs[0], None, None, None])
        assert torch.equal(result, live) and result.stride() == expected.stride()
    assert torch.equal(live, compiled.run(inputs)[0])
    torch.testing.assert_close(
        other.run([inputs[0], None, None, None])[0], _layers(inputs[0], *(2 * value for value in inputs[1:]))
    )


def test_a_bound_run_of_any_batch() -> None:
    """Symbols are read from the images of a call, not from what was there when the region was bound."""
    generator = torch.Generator().manual_seed(2)
    image, scale = torch.randn(3, 8, 6, 6, generator=generator), torch.randn(1, generator=generator)

    def layer(value: Tensor, factor: Tensor) -> Tensor:
        weight = factor * torch.arange(72, dtype=torch.float32).cos().reshape(8, 1, 3, 3)
        return functional.conv2d(value, weight, None, 1, 1, 1, 8)

    region = trace_region(layer, [image, scale], dynamic=True, roles={1: CONSTANT})
    compiled = CodegenBackend().compile(region)
    assert compiled.bind is not None

    assert [item.role for item in region.inputs] == [InputRole.CONSTANT, InputRole.ACTIVATION]
    bound = compiled.bind([scale, None])
    for count in (3, 1, 5):
        value = torch.randn(count, 8, 6, 6, generator=generator)
        torch.testing.assert_close(bound.run([None, value])[0], layer(value, scale))


def test_an_artifact_runs_bound_in_another_backend() -> None:
    region, inputs = _region((1, 2, 3)), _operands()
    artifact = CodegenBackend().compile(region).artifact
    assert artifact is not None
    loaded = CodegenBackend().load(region, artifact)
    assert loaded.bind is not None and loaded.artifact == artifact
    expected = CodegenBackend().compile(region).run(inputs)[0]
    assert torch.equal(loaded.run(inputs)[0], expected)
    assert torch.equal(loaded.bind([None, *inputs[1:]]).run([inputs[0], None, None, None])[0], expected)


def test_an_artifact_that_is_cut_off_is_refused() -> None:
    artifact = CodegenBackend().compile(_region((1, 2, 3))).artifact
    assert artifact is not None
    whole = RegionArtifact.from_bytes(artifact)
    assert whole.preparation is not None and whole.to_bytes() == artifact
    start = artifact.index(b"\n") + 1
    for end in (start + len(whole.compiled) - 1, start + len(whole.compiled) + 10):
        with pytest.raises(CodegenError, match=r"cut off|cannot be read"):
            RegionArtifact.from_bytes(artifact[:end])
