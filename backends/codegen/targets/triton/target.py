"""The Triton target: kernels for NVIDIA's GPUs, and AMD's under torch's name for both, ``cuda``.

Place: the target of the code generator for tensors on GPUs. Steps, for every call of a program: ``specialised`` (sizes
that are known become numbers), ``plan`` (blocks, rows, warps), ``printer`` (text), ``compiler`` (machine code, by
Triton), ``launcher`` (all kernels in one call on the user's stream).
Artifacts hold the machine code, so that a GPU of the same kind loads them without Triton's compiler.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import importlib.util
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from mixbackend.backends.codegen.ir.call_table import CallTable
from mixbackend.backends.codegen.ir.scalar import Apply, walk
from mixbackend.backends.codegen.ir.stages import Scatter, Stage, expressions_of
from mixbackend.backends.codegen.targets.target import Blocks, CompiledProgram, Launch, Target, TargetTraits
from mixbackend.backends.codegen.targets.triton.compiler import Architecture, Binary, compile_texts
from mixbackend.backends.codegen.targets.triton.dtypes import NAMES
from mixbackend.backends.codegen.targets.triton.indices import index_text
from mixbackend.backends.codegen.targets.triton.limits import LEAST_COLUMNS, RESIDENT
from mixbackend.backends.codegen.targets.triton.operators import has_operator
from mixbackend.backends.codegen.targets.triton.text import Text
from mixbackend.contracts import Availability, CodegenError

if TYPE_CHECKING:
    from mixbackend.backends.codegen.ir.kernel import Kernel
    from mixbackend.backends.codegen.ir.program import KernelCall, Program

_VECTOR_BYTES = 128
"""What a warp takes of memory at a time."""

_ROW_BYTES = 192 * 1024
"""Of a row that is read again soon: the share of a block in the second cache."""

_BLOCKS_PER_UNIT = 2
_ATOMIC_TYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64})
BLOCKS = Blocks(
    resident=RESIDENT, least_columns=LEAST_COLUMNS, piece=8192, columns=128, meeting=frozenset({"set", "add"})
)


@dataclass(frozen=True)
class Hardware:
    """The GPU that is compiled for.

    Attributes:
        architecture: of its code.
        units: its processors (NVIDIA: SM, AMD: CU).
        threads: that a unit holds at most.
    """

    architecture: Architecture
    units: int
    threads: int = 2048


@dataclass(frozen=True)
class Printed:
    """A program as text.

    Attributes:
        texts: distinct kernels.
        places: for every call the place of its kernel among them.
        counts: for every call how many values it takes: its number of blocks, and its arguments.
        values: Python text of these values, over ``p``, the parameters of a launch.
    """

    texts: tuple[Text, ...]
    places: tuple[int, ...]
    counts: tuple[int, ...]
    values: str


class TritonTarget(Target):
    """See the module's docstring.

    Args:
        hardware: to compile for; the GPU that is here unless given.
    """

    name: ClassVar[str] = "triton"

    def __init__(self, hardware: Hardware | None = None) -> None:
        self._given = hardware

    def availability(self) -> Availability:
        """Whether there are Triton, a GPU, and a C++ compiler for the launcher."""
        if importlib.util.find_spec("triton") is None:
            return Availability(False, reason="Triton is not installed: pip install 'mixbackend[gpu]'")
        if not torch.cuda.is_available():
            return Availability(False, reason="torch sees no GPU")
        from mixbackend.backends.codegen.targets.cpp.compiler import NoCompilerError, find_compiler

        try:
            find_compiler()
        except NoCompilerError as error:
            return Availability(False, reason=str(error))
        return Availability(True, version=importlib.metadata.version("triton"))

    def fingerprint(self) -> str:
        """Triton, the hardware, and what prints and launches, in one hash."""
        architecture = self.hardware.architecture
        return (
            f"triton {importlib.metadata.version('triton')}, {architecture.backend} {architecture.name}, "
            f"{self.hardware.units} units of {self.hardware.threads} threads, printer {_printer_digest()[:16]}"
        )

    def traits(self) -> TargetTraits:
        """What the scheduler has to know."""
        return TargetTraits(
            device_type="cuda",
            vector_bytes=_VECTOR_BYTES,
            scratch_bytes=_ROW_BYTES,
            parallel_width=_BLOCKS_PER_UNIT * self.hardware.units,
            atomic=True,
            dtypes=frozenset(NAMES),
            blocks=BLOCKS,
            drawing_threads=self._drawing_threads(),
        )

    def _drawing_threads(self) -> int | None:
        """torch's kernels fill the GPU with blocks of 256 threads. Those for AMD's take other elements at once."""
        hardware = self.hardware
        return hardware.threads // 256 * 256 * hardware.units if hardware.architecture.backend == "cuda" else None

    def objection(self, stage: Stage) -> str | None:
        """Operators without text, and updates that may meet where hardware cannot combine them."""
        for node in walk(*expressions_of(stage)):
            if isinstance(node, Apply) and not has_operator(node):
                return f"no {node.op} of {node.arguments[-1].dtype}"
        if not isinstance(stage, Scatter) or stage.mode == "set":
            return None
        if stage.mode not in BLOCKS.meeting or stage.value.dtype not in _ATOMIC_TYPES:
            return f"no updates that {stage.mode} {stage.value.dtype} where others do"
        return None

    def compile(self, program: Program) -> CompiledProgram:
        """Compile what no program before had."""
        printed = print_program(program, self.hardware.units)
        binaries = compile_texts(printed.texts, self.hardware.architecture)
        content = self._content(printed, binaries)
        source = "\n\n".join(text.body for text in printed.texts)
        return CompiledProgram(self._launch(program.call_table, printed, binaries), source, _packed(content))

    def load(self, calls: CallTable, artifact: bytes) -> CompiledProgram:
        """Take the machine code from the artifact.

        Raises:
            CodegenError: the artifact is not one of this program and GPU.
        """
        try:
            content = json.loads(zlib.decompress(artifact))
            texts = tuple(_text_of(item) for item in content["texts"])
            printed = Printed(texts, tuple(content["places"]), tuple(content["counts"]), str(content["values"]))
            binaries = [
                Binary(base64.b64decode(item["code"]), item["symbol"], item["threads"], item["shared"])
                for item in content["binaries"]
            ]
        except (ValueError, KeyError, TypeError, zlib.error) as error:
            raise CodegenError(f"an artifact of compiled kernels cannot be read: {error}") from error
        if content.get("fingerprint") != self.fingerprint() or len(printed.places) != len(calls.calls):
            raise CodegenError("an artifact of compiled kernels belongs to another program or GPU")
        source = "\n\n".join(text.body for text in texts)
        return CompiledProgram(self._launch(calls, printed, binaries), source, artifact)

    @cached_property
    def hardware(self) -> Hardware:
        """What is compiled for."""
        if self._given is not None:
            return self._given
        facts = torch.cuda.get_device_properties(torch.cuda.current_device())
        threads = facts.max_threads_per_multi_processor
        if torch.version.hip:
            name = facts.gcnArchName.partition(":")[0]
            return Hardware(Architecture("hip", name, facts.warp_size), facts.multi_processor_count, threads)
        name = f"{facts.major}{facts.minor}"
        return Hardware(Architecture("cuda", name, 32), facts.multi_processor_count, threads)

    def _launch(self, calls: CallTable, printed: Printed, binaries: Sequence[Binary]) -> Launch:
        from mixbackend.backends.codegen.targets.triton.launcher import Kernels, make_launch

        def unaligned() -> list[Binary]:
            made = compile_texts(printed.texts, self.hardware.architecture, aligned=False)
            return [made[place] for place in printed.places]

        in_order = [binaries[place] for place in printed.places]
        return make_launch(Kernels(calls, in_order, printed.counts, values_of(printed), unaligned))

    def _content(self, printed: Printed, binaries: Sequence[Binary]) -> dict[str, Any]:
        return {
            "fingerprint": self.fingerprint(),
            "texts": [{"body": item.body, "signature": item.signature, "warps": item.warps} for item in printed.texts],
            "places": printed.places,
            "counts": printed.counts,
            "values": printed.values,
            "binaries": [
                {
                    "code": base64.b64encode(item.code).decode(),
                    "symbol": item.symbol,
                    "threads": item.threads,
                    "shared": item.shared,
                }
                for item in binaries
            ],
        }


def print_program(program: Program, units: int) -> Printed:
    """All kernels of a program as text.

    Args:
        units: processors of the hardware.
    """
    texts: dict[Text, int] = {}
    places, counts, values = [], [], []
    start = 0
    for call in program.calls:
        text, blocks = _print_call(call, units)
        places.append(texts.setdefault(text, len(texts)))
        names = {symbol: f"p[{start + place}]" for place, symbol in enumerate(call.kernel.parameters)}
        mine = [index_text(blocks, names)]
        mine += [names[symbol] for symbol in call.kernel.parameters if symbol.name in dict(text.signature)]
        counts.append(len(mine))
        values += mine
        start += len(call.parameters)
    return Printed(tuple(texts), tuple(places), tuple(counts), f"lambda p: ({''.join(f'{item}, ' for item in values)})")


def values_of(printed: Printed) -> Callable[[Sequence[int]], tuple[int, ...]]:
    """The function behind ``Printed.values``."""
    return eval(printed.values, {})  # type: ignore[no-any-return] # our own text


def _print_call(call: KernelCall, units: int) -> tuple[Text, Any]:
    kernel: Kernel = call.kernel  # type: ignore[assignment] # it has no templates
    given = tuple(int(value) if value.is_Integer else None for value in call.parameters)
    return _printed(kernel, given, units)


@lru_cache(maxsize=4096)
def _printed(kernel: Kernel, given: tuple[int | None, ...], units: int) -> tuple[Text, Any]:
    # Only here: what is loaded from artifacts is not printed.
    from mixbackend.backends.codegen.targets.triton.plan import make_plan
    from mixbackend.backends.codegen.targets.triton.printer import block_count, print_kernel
    from mixbackend.backends.codegen.targets.triton.specialised import specialised

    special = specialised(kernel, given)
    plan = make_plan(special, units)
    return print_kernel(special, plan), block_count(plan)


def _text_of(item: dict[str, Any]) -> Text:
    return Text(str(item["body"]), tuple((name, kind) for name, kind in item["signature"]), int(item["warps"]))


def _packed(content: dict[str, Any]) -> bytes:
    return zlib.compress(json.dumps(content).encode(), 1)


@lru_cache(maxsize=1)
def _printer_digest() -> str:
    here = Path(__file__).parent
    texts = [path.name.encode() + path.read_bytes() for path in sorted([*here.glob("*.py"), *here.glob("*.cpp")])]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()
