"""Run a program, in eager or compiled, and write down all that its caller could see.

Place: between ``generate`` and ``comparison``. Input: a program and how to compile it. Output: an ``Observation``.
Invariants: equal seeds before each call; nothing that a run changes outlives it; Dynamo's caches are reset.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mixbackend.benchmarks.fuzz.leaves import MAKE
from mixbackend.benchmarks.fuzz.modes import RandomNumbers
from mixbackend.benchmarks.fuzz.program import Program
from mixbackend.contracts.torch_compat import dynamo_anew, storage_key

_VERSIONS = 64
"""Of one function that Dynamo may compile: more than a program's calls need."""

Compile = Callable[[torch.nn.Module], Callable[..., Any]]


@dataclass
class Observation:
    """What was seen.

    Attributes:
        tensors: values by what they are (``call 1: output 0``, ``call 0: gradient of p0``, ...).
        facts: what must be equal to eager's: types, shapes, strides, which tensors share memory.
        writes: how often each input's version advanced.
        error: class of what was raised, ``""`` if nothing; with ``where`` (the call) and ``message``.
        random: what random operators drew.
    """

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    writes: dict[str, int] = field(default_factory=dict)
    error: str = ""
    where: str = ""
    message: str = ""
    random: list[torch.Tensor] = field(default_factory=list)


def namespace(program: Program, wide: bool = False) -> dict[str, Any]:
    """What the program's text defines."""
    space: dict[str, Any] = {"__name__": "fuzzed"}
    exec(compile(f"{MAKE}\n{program.text(wide)}", f"<fuzzed program{' in float64' if wide else ''}>", "exec"), space)
    return space


def run(
    program: Program,
    compile_it: Compile | None = None,
    *,
    wide: bool = False,
    random: Sequence[torch.Tensor] | None = None,
    mode: Any = None,
) -> Observation:
    """All calls of a program.

    Args:
        program: what to run.
        compile_it: how; nothing for eager.
        wide: in float64.
        random: what random operators shall draw, in eager.
        mode: entered around everything, in eager.
    """
    seen = Observation()
    watch = RandomNumbers(random) if compile_it is None else contextlib.nullcontext()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if wide else torch.float32)
    try:
        with (
            warnings.catch_warnings(),
            watch,
            mode or contextlib.nullcontext(),
            dynamo_anew(program.scalars, _VERSIONS),
        ):
            warnings.simplefilter("ignore")
            _calls(namespace(program, wide), compile_it, seen)
    finally:
        torch.set_default_dtype(before)
    if isinstance(watch, RandomNumbers):
        seen.random = watch.kept
    return seen


def _calls(space: dict[str, Any], compile_it: Compile | None, seen: Observation) -> None:
    model = space["Program"]()
    function = compile_it(model) if compile_it is not None else model
    own = dict([*model.named_parameters(), *model.named_buffers()])
    kept: list[tuple[str, torch.Tensor, torch.Tensor]] = []
    for call, grad in enumerate(space["GRAD"]):
        try:
            with torch.no_grad():
                space["edit"](model, call)
            inputs = space["inputs"](call)
            _one_call(function, call, grad, inputs, own, space, seen, kept)
        except Exception as error:  # what a program raises is an observation
            seen.where, seen.message = f"call {call}", f"{type(error).__name__}: {error}"[:2000]
            inner = getattr(error, "inner_exception", None) or error
            seen.error = type(inner).__name__
            return
    for label, tensor, at_once in kept:
        same = _equal(tensor.detach(), at_once)
        seen.facts[f"{label} afterwards"] = "kept" if same else "changed by a later call"


def _equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether all numbers are the same, NaN being NaN."""
    if left.is_complex():  # half ones know no comparison
        left, right = left.to(torch.complex128), right.to(torch.complex128)
    return bool(((left == right) | ((left != left) & (right != right))).all())


def _one_call(
    function: Callable[..., Any],
    call: int,
    grad: bool,
    inputs: list[torch.Tensor],
    own: dict[str, torch.Tensor],
    space: dict[str, Any],
    seen: Observation,
    kept: list[tuple[str, torch.Tensor, torch.Tensor]],
) -> None:
    known = {**{f"x{place}": item for place, item in enumerate(inputs)}, **own}
    for item in known.values():
        if item.requires_grad and not item.is_leaf:
            item.retain_grad()
    versions = {name: item._version for name, item in known.items()}
    torch.manual_seed(space["SEEDS"][call] + 1234)
    with torch.set_grad_enabled(grad):
        outputs = list(function(*inputs))
    torch_state = torch.get_rng_state()
    prefix = f"call {call}: "
    for name, item in known.items():
        seen.writes[f"{prefix}{name}"] = item._version - versions[name]
        seen.tensors[f"{prefix}{name} afterwards"] = item.detach().clone()
        seen.facts[f"{prefix}form of {name}"] = f"{item.dtype} {list(item.shape)}"
    _outputs(prefix, outputs, known, seen)
    for place, item in enumerate(outputs):
        seen.tensors[f"{prefix}output {place}"] = item.detach().clone()
        kept.append((f"{prefix}output {place}", item, item.detach().clone()))
    if grad:
        _backward(outputs, space["SEEDS"][call], space["ONES"])
        for name, item in known.items():
            gradient = item.grad if item.is_leaf or item.retains_grad else None
            seen.facts[f"{prefix}gradient of {name}"] = (
                "none" if gradient is None else f"{gradient.dtype} {list(gradient.shape)}"
            )
            if gradient is not None:
                seen.tensors[f"{prefix}gradient of {name}"] = gradient.detach().clone()
    seen.facts[f"{prefix}random stream"] = str(hash(torch_state.numpy().tobytes()))


def _outputs(prefix: str, outputs: list[torch.Tensor], known: dict[str, torch.Tensor], seen: Observation) -> None:
    """Facts about outputs."""
    named = [*known.items(), *((f"output {place}", item) for place, item in enumerate(outputs))]
    for place, item in enumerate(outputs):
        label = f"output {place}"
        seen.facts[f"{prefix}form of {label}"] = f"{item.dtype} {list(item.shape)} gradient {item.requires_grad}"
        if item.numel():
            steps = [step if size > 1 else None for size, step in zip(item.shape, item.stride(), strict=True)]
            seen.facts[f"{prefix}strides of {label}"] = str(steps)
            memory = storage_key(item)
            group = [(name, other) for name, other in named if other.numel() and storage_key(other) == memory]
            names = [f"{name}{' itself' if other is item else ''}" for name, other in group if name != label]
            # Where memory begins cannot be seen if no tensor has its first number.
            first = item.storage_offset() - min(other.storage_offset() for _, other in group)
            told = f"of {', '.join(names)} from {first}" if names else "of its own"
            seen.facts[f"{prefix}memory of {label}"] = told


def _backward(outputs: list[torch.Tensor], seed: int, ones: bool) -> None:
    """Gradients of all results, weighted by numbers that every type holds exactly."""
    wanted: list[torch.Tensor] = []
    weights = []
    generator = torch.Generator().manual_seed(seed)
    for item in outputs:
        if not item.requires_grad or any(item is other for other in wanted):
            continue
        wanted.append(item)
        if ones:
            weights.append(torch.ones((), dtype=item.dtype).expand(item.shape))
        else:
            weights.append((torch.randint(-8, 9, item.shape, generator=generator) / 8).to(item.dtype))
    if wanted:
        torch.autograd.backward(wanted, weights)
