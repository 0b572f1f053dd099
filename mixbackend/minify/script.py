"""Script: a piece that fails, as one file that needs torch and the backend alone.

Place: last step of minification. Input: a piece, its verdict, where the backend comes from. Output: text of a script.
The backend is asked through the contract, which it imports itself, and not through a mixture: that would place the ops
where they are right, and repair what is wrong. The region's text holds all that the backend is told; eager runs the
same graph.
Invariants: the script's exit status is 1 while it fails, and 0 once it does not; where the backend ends its process or
hangs, it runs in a process of its own.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from importlib.metadata import entry_points
from pydoc import locate
from typing import Any

import torch

from mixbackend.certify.source import Source
from mixbackend.contracts import Backend, InputRole
from mixbackend.minify.piece import Piece
from mixbackend.minify.shrink import is_seeded, seeded_values, span_of
from mixbackend.minify.verdict import Slowness, Verdict
from mixbackend.registry import ENTRY_POINT_GROUP

_WIDTH = 100
_HANGS_S = 60


def script_of(piece: Piece, verdict: Verdict, backend: str, source: Source, slowness: Slowness | None) -> str:
    """The text; see the module's docstring.

    Args:
        verdict: of the piece.
        backend: its name.
        slowness: what a slow piece is held against.
    """
    ops = ", ".join(dict.fromkeys(view.op for view in piece.region.views if view.op != "getitem"))
    imports, made = backend_text(source)
    if _state(source):
        made = f"{made}\n    vars(plugin).update({_state(source)!r})"
    body, given = _BODIES[verdict.kind], _inputs_text(piece.inputs)
    if slowness is not None:
        against = "eager_s" if slowness.against == "eager" else f"{slowness.expected_s:.3g}"
        body = body.format(expected=against, against=slowness.against, factor=slowness.factor)
    packed = "laid(" in given
    imports += [*_CONTRACT, *([_DEVIATION] if verdict.kind == "wrong" else ())]
    modules = ["sys", *_MODULES[verdict.kind], *(("base64", "zlib") if packed else ())]
    imports += [f"import {name}" for name in modules]
    plain = sorted({line for line in imports if line.startswith("import ")})
    return _SCRIPT.format(
        headline=f"{backend} {_VERBS[verdict.kind]} {ops}.",
        text=verdict.text.replace("\\", "/").replace('"', "'"),
        modules="\n".join(plain),
        imports="\n".join(sorted(set(imports) - set(plain))),
        region=piece.region.text.rstrip(),
        laid=_LAID if packed else "",
        inputs=given,
        made=made,
        run=_BOUND if _has_constants(piece) else "run = compiled.run",
        body=body.strip(),
    )


def backend_text(source: Source) -> tuple[list[str], str]:
    """Lines that import a backend, and the expression that makes it."""
    place = source.text
    if source.way == "name":
        (point,) = [item for item in entry_points(group=ENTRY_POINT_GROUP) if item.name == source.text]
        place = point.value
    module, _, name = place.partition(":")
    imports = [f"from {module} import {name.partition('.')[0]}"]
    if _state(source):
        return imports, f"object.__new__({name})"
    return imports, name if isinstance(locate(f"{module}.{name}"), Backend) else f"{name}()"


def _state(source: Source) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(source.state)
    return state


def _has_constants(piece: Piece) -> bool:
    return any(role is InputRole.CONSTANT for role in piece.roles.values())


def _inputs_text(inputs: Sequence[Any]) -> str:
    """Lines that make the inputs: from the seed, or from their bytes."""
    seeded = seeded_values(inputs)
    same = all(torch.equal(mine, value) for mine, value in zip(seeded, inputs, strict=True) if is_seeded(value))
    lines = ["generator = torch.Generator().manual_seed(0)"] if same and any(map(is_seeded, inputs)) else []
    lines += ["return ["]
    for value in inputs:
        lines.append(f"    {_random_text(value) if same and is_seeded(value) else _value_text(value)},")
    return "\n    ".join([*lines, "]"])


def _random_text(value: torch.Tensor) -> str:
    device = "" if value.device.type == "cpu" else f'"{value.device}", '
    moved = f".to({device}{value.dtype})" if device or value.dtype is not torch.float32 else ""
    shape = tuple(value.shape)
    if value.is_contiguous():
        return f"torch.randn({shape}, generator=generator){moved}"
    laid = f".as_strided({shape}, {tuple(value.stride())})"
    return f"torch.randn({span_of(value)}, generator=generator){moved}{laid}"


def _value_text(value: Any) -> str:
    """A number, a short list, or packed bytes."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    shape, stride, dtype = tuple(value.shape), tuple(value.stride()), value.dtype
    moved = "" if value.device.type == "cpu" else f'.to("{value.device}")'
    flat = value.detach().cpu().contiguous().reshape(-1)
    if not flat.numel():
        return f"torch.empty_strided({shape}, {stride}, dtype={dtype}){moved}"
    whole = not (value.is_floating_point() or value.is_complex())
    if whole and flat.numel() <= 16 and value.is_contiguous():
        return f"torch.tensor({flat.tolist()}, dtype={dtype}).reshape({shape}){moved}"
    if 0 in stride:
        pairs = list(zip(shape, stride, strict=True))
        once = value.as_strided([size if step else 1 for size, step in pairs], [step or 1 for _, step in pairs])
        return f"{_value_text(once)}.expand({shape})"
    packed = base64.b85encode(zlib.compress(flat.view(torch.uint8).numpy().tobytes(), 9)).decode()
    pieces = [repr(packed[start : start + _WIDTH]) for start in range(0, len(packed), _WIDTH)]
    data = "\n        ".join(["(", *pieces, ")"]) if len(pieces) > 1 else pieces[0]
    return f"laid({data}, {dtype}, {shape}, {stride}){moved}"


_VERBS = {
    "wrong": "is wrong at",
    "raises": "raises at",
    "crashes": "ends its process at",
    "hangs": "hangs at",
    "slow": "is slow at",
}
_CONTRACT = (
    "from mixbackend.contracts.asked import ask",
    "from mixbackend.contracts.region_text import read_region_text",
)
_DEVIATION = "from mixbackend.contracts.numerics import find_deviation"
_MODULES = {
    "wrong": (),
    "raises": (),
    "crashes": ("subprocess",),
    "hangs": ("subprocess",),
    "slow": ("statistics", "time"),
}
_BOUND = """constants = [
        value if item.role.value == "constant" else None
        for item, value in zip(region.inputs, inputs(), strict=True)
    ]
    run = compiled.run if compiled.bind is None else compiled.bind(constants).run"""
_WRONG = """
def exact(region, values):
    \"\"\"In float64, where every op can; otherwise as eager has it.\"\"\"
    wide = [v.double() if torch.is_tensor(v) and v.is_floating_point() else v for v in values]
    try:
        return region.graph_module(*wide)
    except RuntimeError:
        return region.graph_module(*values)


def main():
    region, backend, run, compiled = made()
    given = inputs()
    torch.manual_seed(0)
    results = run(list(given))
    torch.manual_seed(0)
    right = region.graph_module(*inputs())
    torch.manual_seed(0)
    wanted = exact(region, inputs())
    problems = []
    for place, (old, new) in enumerate(zip(inputs(), given, strict=True)):
        if torch.is_tensor(old) and place not in region.written and not torch.equal(old, new):
            problems.append(f"it wrote into input {place}")
    for place, (output, mine, eager) in enumerate(zip(region.outputs, results, right, strict=True)):
        found = find_deviation(place, mine, eager, wanted[place], backend.traits().error_budget)
        if found is not None:
            problems.append(str(found))
            print(f"backend: {mine.flatten()[:6].tolist()}\\neager:   {eager.flatten()[:6].tolist()}")
        elif output.exact_stride and compiled.strides == "as_traced" and mine.stride() != eager.stride():
            problems.append(f"output {place} has strides {mine.stride()}, and {eager.stride()} were promised")
        elif output.alias_of is None and any(torch.is_tensor(v) and v.data_ptr() == mine.data_ptr() for v in given):
            problems.append(f"output {place} lies in the memory of an input")
    print("\\n".join(problems) or "right")
    return 1 if problems else 0
"""
_RAISES = """
def main():
    try:
        region, backend, run, compiled = made()
        run(inputs())
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
        return 1
    print("raises nothing")
    return 0
"""
_DIES = f"""
def main():
    if "--inside" in sys.argv:
        region, backend, run, compiled = made()
        run(inputs())
        return 0
    try:
        done = subprocess.run([sys.executable, __file__, "--inside"], timeout={_HANGS_S})
    except subprocess.TimeoutExpired:
        print("it hangs")
        return 1
    print(f"the process ends with {{done.returncode}}")
    return 1 if done.returncode else 0
"""
_SLOW = """
def seconds(call):
    taken = []
    for _ in range(25):
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken[5:])


def main():
    region, backend, run, compiled = made()
    given = inputs()
    mine, eager_s = seconds(lambda: run(list(given))), seconds(lambda: region.graph_module(*given))
    expected = {expected}
    print(f"{{mine:.3g}} s a call; {against} has {{expected:.3g}} s; eager takes {{eager_s:.3g}} s")
    return 1 if mine > {factor:g} * expected else 0
"""
_BODIES = {"wrong": _WRONG, "raises": _RAISES, "crashes": _DIES, "hangs": _DIES, "slow": _SLOW}
_LAID = '''

def laid(packed, dtype, shape, stride):
    """A tensor of its packed elements."""
    flat = torch.frombuffer(bytearray(zlib.decompress(base64.b85decode(packed))), dtype=dtype)
    return torch.empty_strided(shape, stride, dtype=dtype).copy_(flat.reshape(shape))
'''
_SCRIPT = '''"""{headline}

{text}

Written by mixbackend minify; needs torch and the backend. Exit status: 1 while it fails, 0 once it does not.
"""

{modules}

import torch
{imports}

REGION = """
{region}
"""
{laid}

def inputs():
    {inputs}


@torch.no_grad()
def made():
    region = read_region_text(REGION.lstrip())
    plugin = {made}
    backend = ask(plugin)
    compiled = backend.compile(region)
    {run}
    return region, backend, run, compiled


{body}


if __name__ == "__main__":
    with torch.no_grad():
        sys.exit(main())
'''
