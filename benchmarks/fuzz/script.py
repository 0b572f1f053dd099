"""A failing program as a script that runs alone.

Place: the end of the line: what ``--keep`` writes. Input: a program, its setting, its verdict. Output: Python text.
"""

from __future__ import annotations

import pprint
from collections.abc import Mapping, Sequence
from typing import Any

from mixbackend.benchmarks.fuzz.leaves import MAKE
from mixbackend.benchmarks.fuzz.live import repeated
from mixbackend.benchmarks.fuzz.program import Program

_RUNNER = '''
def run(compile_it):
    """Labels and tensors of all calls."""
    torch._dynamo.reset()
    seen = {}
    model = Program()
    function = compile_it(model)
    try:
        with torch._dynamo.config.patch(capture_scalar_outputs=SCALARS, recompile_limit=64):
            for call, grad in enumerate(GRAD):
                one_call(model, function, call, grad, seen)
    except Exception as error:
        seen["raises"] = f"{type(getattr(error, 'inner_exception', None) or error).__name__}: {error}"[:300]
    return seen


def one_call(model, function, call, grad, seen):
    with torch.no_grad():
        edit(model, call)
    known = inputs(call)
    names = {f"x{place}": item for place, item in enumerate(known)}
    names.update([*model.named_parameters(), *model.named_buffers()])
    for item in names.values():
        if item.requires_grad and not item.is_leaf:
            item.retain_grad()
    versions = {name: item._version for name, item in names.items()}
    torch.manual_seed(SEEDS[call] + 1234)
    with torch.set_grad_enabled(grad):
        outputs = function(*known)
    for name, item in names.items():
        seen[f"call {call}: {name} afterwards"] = item.detach().clone()
        seen[f"call {call}: writes into {name}"] = item._version - versions[name]
    memory = {item.untyped_storage()._cdata: name for name, item in names.items() if item.numel()}
    for place, item in enumerate(outputs):
        seen[f"call {call}: output {place}"] = item.detach().clone()
        seen[f"call {call}: form of output {place}"] = (
            item.dtype, tuple(item.shape), item.stride(), item.requires_grad, memory.get(item.untyped_storage()._cdata)
        )
    if grad:
        backward(outputs, SEEDS[call])
        for name, item in names.items():
            if item.requires_grad and item.grad is not None:
                seen[f"call {call}: gradient of {name}"] = item.grad.clone()


def backward(outputs, seed):
    generator, wanted, weights = torch.Generator().manual_seed(seed), [], []
    for item in outputs:
        if item.requires_grad and not any(item is other for other in wanted):
            wanted.append(item)
            if ONES:
                weights.append(torch.ones((), dtype=item.dtype).expand(item.shape))
            else:
                weights.append((torch.randint(-8, 9, item.shape, generator=generator) / 8).to(item.dtype))
    if wanted:
        torch.autograd.backward(wanted, weights)


def tell(name, mine, eager):
    print(f"--- {name}")
    for label in dict.fromkeys([*eager, *mine]):
        left, right = mine.get(label, "missing"), eager.get(label, "missing")
        if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor) and left.shape == right.shape:
            if not torch.equal(left.nan_to_num(), right.nan_to_num()):
                kind = torch.complex128 if left.is_complex() else torch.float64
                off = (left.to(kind) - right.to(kind)).abs().nan_to_num(float("inf")).max()
                both = f": {left.tolist()}; eager: {right.tolist()}" if left.numel() < 9 else ""
                print(f"{label}: off by {float(off):.3g}{both}")
        elif isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor) or left != right:
            print(f"{label}: {left}; eager: {right}")


if __name__ == "__main__":
    import contextlib

    import mixbackend

    if LIVE:
        from mixbackend.benchmarks.fuzz.live import opened
    torch._inductor.config.fallback_random = True
    eager = run(lambda model: model)
    backend = mixbackend.auto(CONFIGURATION)
    with opened() if LIVE else contextlib.nullcontext():
        tell("mixbackend", run(lambda model: torch.compile(model, backend=backend, dynamic=DYNAMIC)), eager)
    report = backend.report()
    for graph in report.graphs:
        print(graph.graph.id, *((region.backend, region.nodes) for region in graph.plan.regions))
    print("\\n".join(str(event)[:300] for event in report.events))
    for control in ("aot_eager", "inductor"):
        tell(control, run(lambda model: torch.compile(model, backend=control, dynamic=DYNAMIC)), eager)
'''


def script(program: Program, configuration: Mapping[str, Any], heading: Sequence[str], live: bool = False) -> str:
    """The whole text.

    Args:
        program: what fails.
        configuration: given to ``mixbackend.auto``.
        heading: lines that say what is wrong.
        live: whether other plans are tried in its calls, which come over and over again.
    """
    comment = "\n".join(f"# {line}" for text in heading for line in text.splitlines())
    settings = f"LIVE = {live}\nCONFIGURATION = {pprint.pformat(dict(configuration), width=110)}"
    text = (repeated(program) if live else program).text()
    return f"{comment}\n{MAKE}\n\n{settings}\n{text}\n{_RUNNER}"
