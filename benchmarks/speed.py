"""The suite's speed mode: the mixture against eager, inductor and every single backend, in turns.

Place: behind ``mixbackend bench suite --speed``. Input: a case and options. Output: a record with every peer's
timings, the planner's estimates beside what was measured, and a verdict on the placement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from rich.console import Console

from mixbackend import registry
from mixbackend.benchmarks.one_model.protocol import MIXTURE, PLAIN, Request
from mixbackend.benchmarks.one_model.timing import Ratio, Timing, interleave, speedup
from mixbackend.benchmarks.results import Record
from mixbackend.benchmarks.runner import Case, SuiteOptions, run_cases

THE_MIXTURE = "mixture"
SINGLE = "only "
"""Prefix of the peers that may use one backend, with the fallback for what it cannot run."""

Outcome = Literal["mixture_wins", "single_rightly_chosen", "even", "planner_wrong", "no_figures"]


def run_speed(options: SuiteOptions, console: Console, rounds: int, peers: Sequence[str] = ()) -> list[Record]:
    """Time every case; ``peers`` limits what runs beside the mixture (default: all)."""

    def work(case: Case, options: SuiteOptions, show: Callable[[str], None]) -> Record:
        return time_case(case, options, rounds, peers, show)

    return run_cases("speed", work, options, console)


def single_backends(configuration: Mapping[str, Any]) -> tuple[str, ...]:
    """Backends that may run alone: those the configuration allows and this machine has, without the fallback."""
    allowed = configuration.get("backends")
    usable = [info.name for info in registry.backends() if info.available and info.name != registry.FALLBACK]
    return tuple(name for name in usable if allowed is None or name in allowed)


def requests_for(case: Case, options: SuiteOptions, peers: Sequence[str] = ()) -> dict[str, Request]:
    """The peers of one case by name."""

    def request(backend: str, configuration: Mapping[str, Any]) -> Request:
        memory = int(options.memory_gb * 1e9)
        return Request("speed", case.model, case.phase, backend, configuration, memory_bytes=memory)

    requests = {
        "eager": request(PLAIN, {}),
        "inductor": request("inductor", {}),
        THE_MIXTURE: request(MIXTURE, options.configuration),
    }
    for name in single_backends(options.configuration):
        alone = {**options.configuration, "backends": [name, registry.FALLBACK]}
        requests[f"{SINGLE}{name}"] = request(MIXTURE, alone)
    return {name: item for name, item in requests.items() if not peers or name in (*peers, "eager", THE_MIXTURE)}


def time_case(
    case: Case, options: SuiteOptions, rounds: int, peers: Sequence[str], show: Callable[[str], None]
) -> Record:
    """Timings of all peers of one case, and what they say about the placement."""
    requests = requests_for(case, options, peers)
    timings = interleave(requests, rounds, options.timeout_s, options.threads, show)
    mixture = timings[THE_MIXTURE]
    over_eager = {name: _plain(speedup(timings["eager"], timing)) for name, timing in timings.items()}
    return {
        "status": mixture.status,
        "detail": mixture.detail,
        "peers": {name: timing.to_dict() for name, timing in timings.items()},
        "over_eager": over_eager,
        "verdict": assess(timings),
        "planner": compare_estimates(timings),
    }


def assess(timings: Mapping[str, Timing]) -> dict[str, Any]:
    """Whether the placement was right, by the quartiles of the rounds' ratios against the best single backend."""
    mixture = timings[THE_MIXTURE]
    rivals = [timing for name, timing in timings.items() if name == "eager" or name.startswith(SINGLE)]
    rivals = [timing for timing in rivals if timing.rounds_s]
    if not mixture.rounds_s or not rivals:
        return {"outcome": "no_figures", "best_single": None, "gain": None, "used": []}
    best = min(rivals, key=lambda timing: timing.median_s)
    gain = speedup(best, mixture)
    used = sorted(name for name, count in mixture.placement.get("nodes", {}).items() if count)
    outcome = _outcome(gain, used)
    return {"outcome": outcome, "best_single": best.name, "gain": _plain(gain), "used": used}


def _outcome(gain: Ratio | None, used: Sequence[str]) -> Outcome:
    if gain is None:
        return "no_figures"
    if gain.high < 1.0 and gain.median < 0.97:
        return "planner_wrong"
    if len([name for name in used if name != registry.FALLBACK]) < 2:
        return "single_rightly_chosen"
    return "mixture_wins" if gain.low > 1.0 else "even"


def compare_estimates(timings: Mapping[str, Timing]) -> dict[str, Any]:
    """What the planner expected beside what was measured, seconds; its mistakes are where the orders differ."""
    placement = timings[THE_MIXTURE].placement
    expected = {f"{SINGLE}{name}": seconds for name, seconds in placement.get("single_backend_s", {}).items()}
    fallback = expected.pop(f"{SINGLE}{registry.FALLBACK}", None)
    if fallback is not None:
        expected["eager"] = fallback
    if placement.get("estimated_s") is not None:
        expected[THE_MIXTURE] = placement["estimated_s"]
    return {
        name: {"estimated_s": seconds, "measured_s": timings[name].to_dict()["median_s"]}
        for name, seconds in expected.items()
        if name in timings
    }


def _plain(ratio: Ratio | None) -> dict[str, float] | None:
    return None if ratio is None else {"median": ratio.median, "low": ratio.low, "high": ratio.high}
