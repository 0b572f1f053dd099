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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from mixbackend.backends.codegen.call_table import CallTable
from mixbackend.backends.codegen.ir.grammar import walk
from mixbackend.backends.codegen.ir.scalar import Apply
from mixbackend.backends.codegen.ir.stages import Scatter, Stage, is_product
from mixbackend.backends.codegen.targets.target import Blocks, CompiledProgram, Launch, Target, TargetTraits
from mixbackend.backends.codegen.targets.triton.availability import triton_availability
from mixbackend.backends.codegen.targets.triton.compiler import Architecture, Binary, compile_texts
from mixbackend.backends.codegen.targets.triton.dtypes import NAMES
from mixbackend.backends.codegen.targets.triton.limits import LEAST_COLUMNS, RESIDENT, Settings
from mixbackend.backends.codegen.targets.triton.operators import has_operator
from mixbackend.backends.codegen.targets.triton.printing import Printed, print_program, reach_of_launch, values_of
from mixbackend.backends.codegen.targets.triton.text import Text
from mixbackend.backends.codegen.targets.triton.tuning import Tuner
from mixbackend.backends.common.private_folder import private_cache_folder
from mixbackend.contracts import Availability, CodegenError
from mixbackend.contracts.torch_compat import rounds_products

if TYPE_CHECKING:
    from mixbackend.backends.codegen.ir.program import Program

_VECTOR_BYTES = 128
"""What a warp takes of memory at a time."""

_ROW_BYTES = 192 * 1024
"""Of a row that is read again soon: the share of a block in the second cache."""

_BLOCKS_PER_UNIT = 2
_TEMPLATES = frozenset({"attention_parts"})
"""Those that ``templates`` prints, without importing it."""
_ATOMIC_TYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64})
BLOCKS = Blocks(
    resident=RESIDENT, least_columns=LEAST_COLUMNS, piece=8192, columns=64, meeting=frozenset({"set", "add"}), beside=48
)


@dataclass(frozen=True)
class Hardware:
    """The GPU that is compiled for.

    Attributes:
        architecture: of its code.
        units: its processors (NVIDIA: SM, AMD: CU).
        threads: that a unit holds at most.
        shared: bytes of shared memory that a block may have.
    """

    architecture: Architecture
    units: int
    threads: int = 2048
    shared: int = 96 * 1024


class TritonTarget(Target):
    """See the module's docstring.

    Args:
        hardware: to compile for; the GPU that is here unless given.
        measuring: whether plans are measured that were not measured before.
        tuner: chooses among plans of a kernel; of the GPU that is here unless given.
    """

    name: ClassVar[str] = "triton"

    def __init__(self, hardware: Hardware | None = None, measuring: bool = False, tuner: Tuner | None = None) -> None:
        self._given = hardware
        self._measuring = measuring
        self._given_tuner = tuner

    def availability(self) -> Availability:
        """Whether there are Triton, a GPU, and a C++ compiler for the launcher."""
        return triton_availability()

    def fingerprint(self) -> str:
        """Triton, the hardware, and what prints and launches, in one hash."""
        architecture = self.hardware.architecture
        factors = "tf32" if self._settings.tf32 else "float32"
        return (
            f"triton {importlib.metadata.version('triton')}, {architecture.backend} {architecture.name}, {factors}, "
            f"{self.hardware.units} units of {self.hardware.threads} threads, printer {_printer_digest()[:16]}"
        )

    def traits(self) -> TargetTraits:
        """What the scheduler has to know."""
        return TargetTraits(
            device_type="cuda",
            vector_bytes=_VECTOR_BYTES,
            scratch_bytes=_ROW_BYTES,
            parallel_width=_BLOCKS_PER_UNIT * self.hardware.units,
            dtypes=frozenset(NAMES),
            templates=_TEMPLATES,
            blocks=BLOCKS,
            drawing_threads=self._drawing_threads(),
        )

    def _drawing_threads(self) -> int | None:
        """torch's kernels fill the GPU with blocks of 256 threads. Those for AMD's take other elements at once."""
        hardware = self.hardware
        return hardware.threads // 256 * 256 * hardware.units if hardware.architecture.backend == "cuda" else None

    def objection(self, stage: Stage) -> str | None:
        """Operators without text, sums over windows, and updates that may meet where hardware cannot combine them."""
        if is_product(stage) and len(stage.reduced) > 1:
            return "no products of windows"
        for node in walk(stage):
            if isinstance(node, Apply) and not has_operator(node):
                return f"no {node.op} of {node.arguments[-1].dtype}"
        if not isinstance(stage, Scatter) or stage.mode == "set":
            return None
        if stage.mode not in BLOCKS.meeting or stage.value.dtype not in _ATOMIC_TYPES:
            return f"no updates that {stage.mode} {stage.value.dtype} where others do"
        return None

    def compile(self, program: Program) -> CompiledProgram:
        """Compile what no program before had."""
        printed = print_program(program, self._settings, None if self._tuner is None else self._tuner.choose)
        binaries = compile_texts(printed.texts, self.hardware.architecture)
        content = self._content(printed, binaries)
        source = "\n\n".join(text.body for text in printed.texts)
        return CompiledProgram(self._launch(program.call_table, printed, binaries), source, _packed(content))

    def load(self, calls: CallTable, artifact: bytes) -> CompiledProgram:
        """Take the machine code from the artifact.

        Raises:
            CodegenError: the artifact is not one of this program and GPU.
            FileNotFoundError: plans of kernels are measured here, and those of the artifact were not.
        """
        try:
            content = json.loads(zlib.decompress(artifact))
            texts, wide = (tuple(map(_text_of, content[kind])) for kind in ("texts", "wide"))
            places, counts = tuple(content["places"]), tuple(content["counts"])
            printed = Printed(texts, wide, places, counts, str(content["values"]), str(content["reach"]))
            binaries = [
                Binary(base64.b64decode(item["code"]), item["symbol"], item["threads"], item["shared"], item["early"])
                for item in content["binaries"]
            ]
        except (ValueError, KeyError, TypeError, zlib.error) as error:
            raise CodegenError(f"an artifact of compiled kernels cannot be read: {error}") from error
        if self._measures and not content.get("measured"):
            # It is sound, and not what is wanted here: there is nothing to report.
            raise FileNotFoundError("an artifact of compiled kernels has blocks that were not measured")
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
        shared = getattr(facts, "shared_memory_per_block_optin", 96 * 1024)
        if torch.version.hip:
            name = facts.gcnArchName.partition(":")[0]
            return Hardware(Architecture("hip", name, facts.warp_size), facts.multi_processor_count, threads, 64 * 1024)
        name = f"{facts.major}{facts.minor}"
        return Hardware(Architecture("cuda", name, 32), facts.multi_processor_count, threads, shared)

    @property
    def _measures(self) -> bool:
        return self._tuner is not None and self._tuner.measures

    @cached_property
    def _tuner(self) -> Tuner | None:
        """None for hardware that is not here: what is measured holds for this one."""
        if self._given_tuner is not None or self._given is not None:
            return self._given_tuner
        from mixbackend.backends.codegen.targets.triton.device_clock import device_clock

        clock = device_clock(lambda: self.hardware.architecture) if self._measuring else None
        machine = f"{torch.cuda.get_device_name()} {self.fingerprint()}"
        return Tuner(clock, machine, lambda: private_cache_folder("codegen-triton"))

    @property
    def _settings(self) -> Settings:
        return Settings(self.hardware.units, self.hardware.shared, rounds_products())

    def _launch(self, calls: CallTable, printed: Printed, binaries: Sequence[Binary]) -> Launch:
        from mixbackend.backends.codegen.targets.triton.launcher import Kernels, make_launch

        def chosen(aligned: bool, wide: bool) -> list[Binary]:
            made = binaries
            if wide or not aligned:
                texts = printed.wide if wide else printed.texts
                made = compile_texts(texts, self.hardware.architecture, aligned)
            return [made[place] for place in printed.places]

        return make_launch(Kernels(calls, chosen, printed.counts, values_of(printed), reach_of_launch(printed)))

    def _content(self, printed: Printed, binaries: Sequence[Binary]) -> dict[str, Any]:
        return {
            "fingerprint": self.fingerprint(),
            "measured": self._measures,
            "texts": list(map(_kept, printed.texts)),
            "wide": list(map(_kept, printed.wide)),
            "places": printed.places,
            "counts": printed.counts,
            "values": printed.values,
            "reach": printed.reach,
            "binaries": [
                {
                    "code": base64.b64encode(item.code).decode(),
                    "symbol": item.symbol,
                    "threads": item.threads,
                    "shared": item.shared,
                    "early": item.early,
                }
                for item in binaries
            ],
        }


def _kept(text: Text) -> dict[str, Any]:
    return {"body": text.body, "signature": text.signature, "warps": text.warps, "stages": text.stages}


def _text_of(item: dict[str, Any]) -> Text:
    signature = tuple((name, kind) for name, kind in item["signature"])
    return Text(str(item["body"]), signature, int(item["warps"]), int(item["stages"]))


def _packed(content: dict[str, Any]) -> bytes:
    return zlib.compress(json.dumps(content).encode(), 1)


@lru_cache(maxsize=1)
def _printer_digest() -> str:
    here = Path(__file__).parent
    texts = [path.name.encode() + path.read_bytes() for path in sorted([*here.glob("*.py"), *here.glob("*.cpp")])]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()
