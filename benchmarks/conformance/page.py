"""benchmarks/results/conformance.md, written from results.

Place: the last part of ``.ci/conformance``. Input: JUnit files of the suites, result files of operator samples. Output:
the page. Nothing on it is written by hand; a part without results says so.
"""

from __future__ import annotations

import ast
import platform
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from mixbackend.benchmarks.conformance.suites import CONTROL, SUITES, SuiteResult, junit_path, read_junit
from mixbackend.benchmarks.conformance.tallies import OperatorTally, tally_of
from mixbackend.benchmarks.results import ResultFile, installed_version

_PACKAGES = (
    "torch",
    "lightning",
    "transformers",
    "accelerate",
    "peft",
    "torchao",
    "diffusers",
    "torchcts",
    "onnxruntime",
)
_NAMED_AT_MOST = 60
_WIDTH = 118

_HEAD = """# Conformance

What others wrote about `torch.compile`, run through `mixbackend.auto()` and held against eager. This page is written by
`.ci/conformance`, which makes an environment of its own:

```
CONFORMANCE=/tmp/conformance .ci/conformance            # everything, then this page
CONFORMANCE=/tmp/conformance .ci/conformance clients    # one part: clients, torchcts, opinfo, page
```

Written with
{versions}.
Nothing is calibrated here: placements are those of a machine whose rates are not known.
"""

_CLIENTS = """
## Clients

Programs as their users write them (`tests/clients`), in eager, in eager with float64 and compiled. A result is right if
it is as near to float64 as eager is, within four times eager's distance and 64 units in the last place: the rule of
`contracts/numerics.py` with what every backend states of itself. No region may have been repaired or replaced.
"""

_NOTES = """
What their users should know:

- Lightning: `Trainer.fit(torch.compile(module, backend=mixbackend.auto()), ...)`, or compile a part of the module.
  Fabric compiles again what it is handed compiled.
- Hugging Face's `Trainer`: `model.compile(backend=mixbackend.auto())` before it is handed over. Its own option
  `torch_compile_backend`, and Accelerate's plug-in for Dynamo, take a fixed list of names, `mixbackend` not among
  them. A model from `torch.compile` needs `remove_unused_columns=False`, as with every backend.
- `generate()`: `CompileConfig(backend=mixbackend.auto())`, or compile `model.forward`.
- Copies, averages and workers: a compiled model is copied, pickled and sent to spawned processes with its weights;
  there it is compiled again at its first call.
"""

_TORCHCTS = """
## TorchCTS

The compiler suite of TorchCTS with `torch.compiler.set_default_backend(mixbackend.auto())`, and the same with
`aot_eager` as control.
"""

_OPINFO = """
## Torch's operator samples

The samples of torch's own operator database (`OpInfo`) on the processor, each compiled by default `auto()` (only
`select: off`, so that no other plans are tried), with gradients of all inputs that have
some. A sample is right if values (by the rule above), types, shapes and strides (not those of gradients) are eager's;
of strides, those that torch's fake kernels state are right as well. Where eager itself seems to be right by luck,
rounding noise in float64 says how far it may be. Where a sample is random, or memory is left as it was, types and
shapes alone are held. What fails is run with `aot_eager` as well. A repaired region was found by the check at run time
and replaced: the result was right. The command, which resumes:

```
python -m mixbackend.benchmarks.conformance opinfo --dtype float32 --jobs 16 --limit-s 500 --out results/opinfo.jsonl
```
"""


def write_page(folder: Path, opinfo: Sequence[Path], out: Path) -> int:
    """Write the page; the exit status."""
    text = _HEAD.format(versions=_versions())
    text += _CLIENTS + _clients(_read(folder, "clients", "auto"))
    text += _NOTES + _TORCHCTS + _torchcts(folder)
    text += _OPINFO + _operators(opinfo)
    out.write_text(text, encoding="utf-8")
    print(f"{out} is written")
    return 0


def _versions() -> str:
    found = [f"Python {platform.python_version()}"]
    for name in _PACKAGES:
        known = installed_version(name)
        found.append(f"{name} {known}" if known else f"no {name}")
    return "\n".join(textwrap.wrap(", ".join(found), _WIDTH))


def _read(folder: Path, name: str, backend: str) -> SuiteResult | None:
    path = junit_path(folder, name, backend)
    return read_junit(path) if path.exists() else None


def _clients(result: SuiteResult | None) -> str:
    if result is None:
        return "\nNot run.\n"
    rows = ["", "| tests | what | passed | skipped | failed |", "|---|---|---:|---:|---:|"]
    counts = [
        _by_file(result.passed),
        *(_by_file(name for name, _ in part) for part in (result.skipped, result.failed)),
    ]
    for module in sorted(set().union(*counts)):
        numbers = " | ".join(str(count[module]) for count in counts)
        rows.append(f"| `{module}` | {_first_line(Path('tests/clients') / f'{module}.py')} | {numbers} |")
    rows += _named("failed", [f"{name}: {why}" for name, why in result.failed])
    rows += _named("skipped", [f"{name}: {why}" for name, why in result.skipped])
    return "\n".join(rows) + "\n"


def _by_file(names: Iterable[str]) -> Counter[str]:
    return Counter(name.partition("::")[0] for name in names)


def _first_line(path: Path) -> str:
    """Of a module's docstring."""
    if not path.exists():
        return ""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n\n")[0].replace("\n", " ").replace("``", "`")


def _torchcts(folder: Path) -> str:
    rows = ["", "| default backend | passed | failed | skipped | seconds |", "|---|---:|---:|---:|---:|"]
    named: list[str] = []
    for backend in SUITES["torchcts"]:
        result = _read(folder, "torchcts", backend)
        title = "`mixbackend.auto()`" if backend == "auto" else f"`{CONTROL}`"
        if result is None:
            rows.append(f"| {title} | not run | | | |")
            continue
        numbers = f"{len(result.passed)} | {len(result.failed)} | {len(result.skipped)} | {result.seconds:.0f}"
        rows.append(f"| {title} | {numbers} |")
        named += _named(f"failed with {title}", [f"{name}: {why}" for name, why in result.failed])
    return "\n".join([*rows, *named]) + "\n"


def _operators(paths: Sequence[Path]) -> str:
    tallies = [item for path in paths for item in _tallies(path)]
    if not tallies:
        return "\nNot run.\n"
    rows = [
        "",
        "| code | type | samples | operators | whole | compiled | stated | random | wrong "
        "| as `aot_eager` | repaired |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    named: list[str] = []
    for label, tally in tallies:
        rows.append(
            f"| {label} | {tally.dtype} | {tally.samples} | {tally.operators} | {tally.complete} | {tally.compiled} "
            f"| {tally.stated} | {tally.random} | {len(tally.ours)} | {len(tally.shared)} | {len(tally.repaired)} |"
        )
        named += _named(f"wrong, {tally.dtype}, {label}", _by_operator(tally.ours))
        named += _named(f"wrong as in aot_eager, {tally.dtype}, {label}", tally.shared)
        named += _named(f"repaired, {tally.dtype}, {label}", tally.repaired)
    explained = (
        "\n`whole`: operators of which every sample was run; the others have some samples left. `stated`: right, with "
        "the strides\nthat torch's fake kernels state, where eager's kernel gives others."
    )
    return "\n".join([*rows, explained, *named]) + "\n"


def _by_operator(problems: Iterable[str]) -> list[str]:
    """Problems of the same kind of one operator as one line, with the first of them."""
    found: dict[tuple[str, str], list[str]] = {}
    for problem in problems:
        operator, _, text = problem.partition(" #")
        found.setdefault((operator, re.sub(r"[-+.\de]+", "", text.partition(": ")[2])), []).append(problem)
    return [items[0] if len(items) == 1 else f"{len(items)} samples, such as {items[0]}" for items in found.values()]


def _tallies(path: Path) -> list[tuple[str, OperatorTally]]:
    """Of the newest code that a file knows, by type."""
    records = ResultFile(path).records()
    if not records:
        return []
    label = str(records[-1]["label"])
    types = sorted({str(record["dtype"]) for record in records if record["label"] == label})
    return [(label, tally_of(records, label, dtype)) for dtype in types]


def _named(title: str, items: Sequence[str]) -> list[str]:
    if not items:
        return []
    shown = [f"- {item}".replace("\n", " ") for item in items[:_NAMED_AT_MOST]]
    more = [f"- and {len(items) - _NAMED_AT_MOST} more"] if len(items) > _NAMED_AT_MOST else []
    return ["", f"{title[:1].upper()}{title[1:]} ({len(items)}):", "", *shown, *more]
