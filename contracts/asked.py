"""A backend as the rest of the system sees it: asked once, guarded, typed.

Place: between a plug-in and everything that asks it; ``registry.resolve`` gives out nothing else, and the planner wraps
what it is given by hand. Input: a ``Backend`` as its vendor wrote it. Output: an ``AskedBackend``.
What a plug-in says of itself (``Stated``) is asked when it is resolved, held against the types of the contract, and
kept: a plug-in that fails there is no backend of this session (``ContractError``, with all that is wrong). What it is
asked about an op or a region later is guarded one by one: an answer that is none costs it that op or region, or its own
price, and is emitted once per question (``Fault``).
Invariants: no question of the planner raises because of a plug-in; equal questions to ``traits``, ``patterns``,
``conditions``, ``fingerprint`` have the very same answer. ``compile`` and ``load`` raise what the plug-in raises, which
quarantines a region, and ``TypeError`` where it returns something else; never ``SystemExit``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar, cast

import torch

from mixbackend.contracts.backend import Availability, Backend, Traits
from mixbackend.contracts.build_seconds import BuildSeconds
from mixbackend.contracts.cost import BackendRates, DeviceModel
from mixbackend.contracts.errors import ContractError, LoweringError
from mixbackend.contracts.forms import misfit, shown
from mixbackend.contracts.lowered import lowered
from mixbackend.contracts.op_levels import LOWERING, OpLevel
from mixbackend.contracts.ops import CLAIMED_WHOLE, OpView
from mixbackend.contracts.patterns import Match, Pattern
from mixbackend.contracts.probe import Probe
from mixbackend.contracts.region import CompiledRegion, Region, RegionConditions, RegionSketch
from mixbackend.contracts.verdict import Supported, Unsupported, Verdict

logger = logging.getLogger("mixbackend")

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Fault:
    """What a plug-in did against the contract.

    Attributes:
        backend: its name.
        question: what it was asked: a method, or a function of a pattern.
        detail: what it did, in words.
        about: the op, region or pattern it was asked about, ``""`` if about itself.
    """

    backend: str
    question: str
    detail: str
    about: str = ""

    def __str__(self) -> str:
        return f"{self.question}() {self.detail}" + (f" (asked about {self.about})" if self.about else "")


@dataclass(frozen=True, slots=True)
class Stated:
    """What a plug-in says of itself.

    Attributes:
        traits, conditions, patterns: as the methods of these names say.
        declines: whether it may decline whole regions.
        prices: whether it may price whole regions.
        availability, fingerprint: the same, if they were asked.
    """

    traits: Traits
    conditions: RegionConditions
    patterns: tuple[Pattern, ...]
    declines: bool
    prices: bool
    availability: Availability | None = None
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A match that a plug-in takes.

    Attributes:
        cost: seconds of the whole, ``None`` where it leaves that to the planner.
        priced_as: an op that takes as long, where it has no cost.
    """

    cost: float | None
    priced_as: OpView | None


def ask(
    plugin: Backend, availability: Availability | None = None, *, identify: bool = True, source: str = ""
) -> AskedBackend:
    """A plug-in with its answers about itself.

    Args:
        availability: its answer to that, if it was asked.
        identify: whether its fingerprint is asked for; planning alone needs none.
        source: digest of its source where that may change under one fingerprint; becomes a part of the fingerprint.

    Raises:
        ContractError: it raises, or gives something else than the contract asks for; names every such question.
    """
    if isinstance(plugin, AskedBackend):
        return plugin
    wrong: list[str] = []

    def answer(question: str, hint: Any, otherwise: Answer) -> Answer:
        given, fault = _guarded(getattr(plugin, question), hint)
        wrong.extend([f"{question}() {fault}"] if fault else [])
        return otherwise if fault else given

    nothing: tuple[Pattern, ...] = ()
    traits = answer("traits", Traits, Traits())
    conditions = answer("conditions", RegionConditions, RegionConditions())
    patterns = answer("patterns", tuple[Pattern, ...], nothing)
    fingerprint = answer("fingerprint", str, "") if identify else ""
    twice = sorted({item.name for item in patterns if sum(item.name == other.name for other in patterns) > 1})
    wrong += [f"patterns() returned several of one name: {', '.join(twice)}"] if twice else []
    if wrong:
        raise ContractError(
            what=f"backend {plugin.name!r}: " + "; ".join(wrong),
            where=f"{type(plugin).__module__}.{type(plugin).__qualname__}",
            hint="repair the plug-in, or leave it out with `backends` of the configuration",
        )
    stated = Stated(
        traits=_plain(traits, Traits),
        conditions=_plain(conditions, RegionConditions),
        patterns=patterns,
        declines=type(plugin).decline is not Backend.decline,
        prices=type(plugin).region_cost is not Backend.region_cost,
        availability=availability,
        fingerprint=_identity(fingerprint, traits.level, source),
    )
    return AskedBackend(plugin, stated)


def _identity(fingerprint: str, level: OpLevel, source: str) -> str:
    """A fingerprint with what else changes what it compiles: below the level ``aten`` torch's decompositions do."""
    parts = [fingerprint, "" if level == "aten" else f"level={level} lowered-by={torch.__version__}/{LOWERING}"]
    return " ".join(part for part in (*parts, f"source={source}" if source else "") if part)


def asked_availability(plugin: Backend) -> Availability:
    """Whether a plug-in can be used here by its own word; not, where it says something else."""
    answer, fault = _guarded(plugin.availability, Availability)
    return Availability(False, f"availability() {fault}") if fault else answer


def asked_all(backends: Sequence[Backend]) -> tuple[AskedBackend, ...]:
    """Backends as the planner asks them; those that are asked already stay as they are.

    Raises:
        ContractError: see ``ask``.
    """
    return tuple(ask(backend, identify=False) for backend in backends)


class AskedBackend(Backend):
    """See the module's docstring.

    Args:
        plugin: the backend that is asked.
        stated: its answers about itself.
        emit: called with every fault, once per question and kind of fault; without it, it is logged.
    """

    def __init__(self, plugin: Backend, stated: Stated, emit: Callable[[Fault], None] | None = None) -> None:
        self.name = plugin.name  # type: ignore[misc]
        self.contract_version = plugin.contract_version  # type: ignore[misc]
        self.plugin = plugin
        self.stated = stated
        self._emit = emit or _log
        self._emitted: set[tuple[str, str]] = set()

    def emitting_to(self, emit: Callable[[Fault], None]) -> AskedBackend:
        """The same, with faults given to another function."""
        return AskedBackend(self.plugin, self.stated, emit)

    # --- about itself: answered before ---------------------------------------------------------------------------

    def availability(self) -> Availability:
        if self.stated.availability is not None:
            return self.stated.availability
        return asked_availability(self.plugin)

    def fingerprint(self) -> str:
        return self.stated.fingerprint

    def traits(self) -> Traits:
        return self.stated.traits

    def conditions(self) -> RegionConditions:
        return self.stated.conditions

    def patterns(self) -> tuple[Pattern, ...]:
        return self.stated.patterns

    # --- about ops and regions: guarded one by one ---------------------------------------------------------------

    def judge(self, view: OpView) -> Verdict:
        """Its verdict; of a lower level that on all that the op becomes there. A fault is the refusal
        ``backend-error``."""
        level = self.stated.traits.level
        if level == "aten" or view.node.tags & CLAIMED_WHOLE:
            return self._verdict(view)
        if view.op == "getitem":
            return Supported()
        try:
            inner = lowered(view, level)
        except LoweringError as error:
            return Unsupported("decomposition", error.what)
        return _joint([(step, self._verdict(step)) for step in inner if step.op != "getitem"], view)

    def _verdict(self, view: OpView) -> Verdict:
        verdict, fault = self._ask("judge", lambda: self.plugin.judge(view), Verdict, view.op)
        if not fault and isinstance(verdict, Supported) and not _is_finite(verdict.cost):
            fault = self._fault("judge", f"returned a cost of {verdict.cost} seconds", "form", view.op)
        return Unsupported("backend-error", f"judge() {fault}") if fault else cast(Verdict, verdict)

    def decline(self, sketch: RegionSketch) -> Unsupported | None:
        """Its reason not to take a region; a fault is the refusal ``backend-error``."""
        if not self.stated.declines:
            return None
        answer, fault = self._ask("decline", lambda: self.plugin.decline(sketch), Unsupported | None, _named(sketch))
        return Unsupported("backend-error", f"decline() {fault}") if fault else answer

    def region_cost(self, sketch: RegionSketch) -> float | None:
        """Its own price of a region; without a usable one the model's stands."""
        if not self.stated.prices:
            return None
        return self._cost("region_cost", lambda: self.plugin.region_cost(sketch), _named(sketch))[0]

    def claim(self, pattern: Pattern, match: Match) -> Claimed | None:
        """Whether, and at which price, it takes a match; a fault costs it the match: its ops are judged one by one."""
        about = f"pattern {pattern.name}"
        verdict, fault = self._ask("check", lambda: pattern.check(match), Verdict, about)
        if fault or not isinstance(verdict, Supported):
            return None
        cost, fault = self._cost("cost", lambda: pattern.cost(match), about)
        if fault or not _is_finite(verdict.cost):
            return None
        cost = verdict.cost if cost is None else cost
        priced_as, fault = self._ask("priced_as", lambda: pattern.priced_as(match), OpView | None, about)
        return None if fault else Claimed(cost, priced_as)

    def prior(self, device: DeviceModel) -> BackendRates | None:
        """The rates that it states; the planner's defaults where they are no rates."""
        rates, fault = self._ask("prior", lambda: self.plugin.prior(device), BackendRates | None, device.device)
        if fault or rates is None:
            return None
        seconds = (rates.entry_s, rates.crossing_s, rates.switch_s, rates.memory_scale, rates.weight_scale)
        if not all(map(_is_finite, seconds)):
            self._fault("prior", f"returned rates that are not finite: {shown(seconds)}", "form", device.device)
            return None
        return rates

    def build_seconds(self, device_type: str) -> BuildSeconds:
        """What it says that compiling takes; the contract's default where that is no time."""
        answer, fault = self._ask(
            "build_seconds", lambda: self.plugin.build_seconds(device_type), BuildSeconds, device_type
        )
        usable = not fault and _is_finite(answer.region_s) and _is_finite(answer.op_s)
        return answer if usable else super().build_seconds(device_type)

    def probes(self, device: DeviceModel) -> tuple[Probe, ...]:
        """What to run to learn its rates; nothing where it names no probes."""
        answer, fault = self._ask("probes", lambda: tuple(self.plugin.probes(device)), tuple[Probe, ...], device.device)
        return () if fault else answer

    def for_measuring(self) -> Backend:
        """It as it is where candidates are measured; as it is anyway where that cannot be had."""
        answer, fault = self._ask("for_measuring", self.plugin.for_measuring, Backend, "")
        if fault or answer is self.plugin:
            return self
        try:
            asked = ask(answer, self.stated.availability, identify=False)
        except ContractError as error:
            self._fault("for_measuring", f"returned a backend with faults: {error.what}", "form", "")
            return self
        return AskedBackend(asked.plugin, replace(asked.stated, fingerprint=self.stated.fingerprint), self._emit)

    # --- what may raise ------------------------------------------------------------------------------------------

    def compile(self, region: Region) -> CompiledRegion:
        return self._made("compile", region, lambda given: self.plugin.compile(given))

    def load(self, region: Region, artifact: bytes) -> CompiledRegion:
        return self._made("load", region, lambda given: self.plugin.load(given, artifact))

    def _made(self, question: str, region: Region, call: Callable[[Region], object]) -> CompiledRegion:
        """What it makes of a region in the operators that it speaks."""
        given = lowered(region, self.stated.traits.level)
        compiled = _compiled(question, lambda: call(given))
        if not given.preconditions:
            return compiled
        return replace(compiled, preconditions=(*given.preconditions, *compiled.preconditions))

    def loading(self, device_type: str) -> str:
        """What it says; its fingerprint, which nothing else has, where that is no text."""
        if type(self.plugin).loading is Backend.loading:
            return self.fingerprint()
        answer, fault = self._ask("loading", lambda: self.plugin.loading(device_type), str, device_type)
        return self.fingerprint() if fault else answer

    def kit(self, device_type: str) -> bytes | None:
        """What it gives; nothing where that are no bytes."""
        answer, fault = self._ask("kit", lambda: self.plugin.kit(device_type), bytes | None, device_type)
        return None if fault else answer

    def with_kit(self, kit: bytes) -> Backend:
        return self.plugin.with_kit(kit)

    def _cost(self, question: str, call: Callable[[], object], about: str) -> tuple[float | None, str]:
        cost, fault = self._ask(question, call, float | None, about)
        if not fault and not _is_finite(cost):
            fault = self._fault(question, f"returned {cost} seconds", "form", about)
        return (None if fault or cost is None else float(cost)), fault

    def _ask(self, question: str, call: Callable[[], object], hint: Any, about: str) -> tuple[Any, str]:
        """An answer, or what is wrong with it, which is emitted."""
        answer, fault = _guarded(call, hint)
        return answer, self._fault(question, fault, fault.partition(":")[0], about) if fault else ""

    def _fault(self, question: str, detail: str, kind: str, about: str) -> str:
        if (question, kind) not in self._emitted:
            self._emitted.add((question, kind))
            self._emit(Fault(self.name, question, detail, about))
        return detail


def _joint(answers: Sequence[tuple[OpView, Verdict]], view: OpView) -> Verdict:
    """The verdict on an op by those on what it becomes: the first refusal, or the sum of the costs."""
    for step, verdict in answers:
        if isinstance(verdict, Unsupported):
            if step is view:
                return verdict
            told = verdict.detail or verdict.code
            return Unsupported("decomposition", f"{view.op} becomes {step.op}: {told}")
    costs = [verdict.cost for _, verdict in answers if isinstance(verdict, Supported)]
    return Supported(None if None in costs else sum(cost for cost in costs if cost is not None))


def _guarded(call: Callable[[], object], hint: Any) -> tuple[Any, str]:
    """What a plug-in answers, and what is wrong with that: then it has no answer."""
    try:
        answer = call()
        wrong = misfit(answer, hint)
    except (Exception, SystemExit) as error:  # whatever a plug-in does must stay its own problem; the reason is kept
        return None, f"raised {_words(error)}"
    return (None, f"returned {wrong}") if wrong else (answer, "")


def _words(error: BaseException) -> str:
    text = str(error) if _is_told(error) else ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _is_told(error: BaseException) -> bool:
    """Whether an exception of a plug-in can say what it is."""
    try:
        return isinstance(str(error), str)
    except Exception:  # whatever it raises instead, it says nothing
        return False


def _is_finite(cost: float | None) -> bool:
    return cost is None or math.isfinite(cost)


def _plain(value: Answer, form: type[Answer]) -> Answer:
    """A value as the contract's own class has it: what a subclass adds or overrides is not asked."""
    if type(value) is form:
        return value
    return form(**{item.name: getattr(value, item.name) for item in fields(form)})  # type: ignore[arg-type]


def _named(sketch: RegionSketch) -> str:
    return f"a region of {len(sketch.views)} ops from {sketch.views[0].op}" if sketch.views else "a region"


def _compiled(question: str, call: Callable[[], object]) -> CompiledRegion:
    """A compiled region, or an exception that can be caught as one and says what it is."""
    try:
        answer = call()
    except SystemExit as error:
        raise RuntimeError(f"{question} raised {_words(error)}") from error
    except Exception as error:
        if not _is_told(error):
            raise RuntimeError(f"{question} raised {_words(error)}") from error
        raise
    if not isinstance(answer, CompiledRegion):
        raise TypeError(f"{question} returned {shown(answer)} instead of a CompiledRegion")
    wrong = misfit(answer, CompiledRegion)
    if wrong:
        raise TypeError(f"{question} returned {wrong}")
    return answer


def _log(fault: Fault) -> None:
    logger.warning("backend %r: %s", fault.backend, fault)
