"""One case: every peer in a process of its own, in turns, while all others are stopped.

Place: below ``runner``. Input: a case, the peers that shall take part, ``Options``. Output: one record per peer.
Invariants: eager always takes part, as the anchor: what was timed in another run is compared through it. Compilations
run one after the other. A peer that is not at work is stopped by a signal, so that waiting threads cannot spin; what
else keeps the machine busy is recorded beside every figure. Peers that fail keep their reason and cost only themselves.
Our own peers begin with a database that holds the rates of this machine and nothing else, so no earlier decision.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

from mixbackend.benchmarks.idle_threads import make_threads_sleep, without_decisions
from mixbackend.benchmarks.machine_rates import FROZEN_RATES, begin_anew
from mixbackend.benchmarks.one_model.timing import round_order
from mixbackend.benchmarks.peers.catalogue import EAGER, cache_folder, configuration_of, is_ours, refusal
from mixbackend.benchmarks.peers.request import MODULE, Guards, PeerCase, PeerRequest
from mixbackend.cost.switches import measuring_is_allowed
from mixbackend.host.processes import Answer, Worker, ask
from mixbackend.storage import private_folder

Environment = Literal["user", "sleeping"]
Show = Callable[[str, float], None]
"""Told what is being done, and how many expected seconds of work are behind since the last time."""

EXPECTED_S: Mapping[str, float] = {
    "inductor-max-autotune": 120.0,
    "inductor": 45.0,
    "inductor-freezing": 45.0,
    "tuned": 90.0,
}
"""Compilation, for the bar's time left; what is not named takes ten seconds."""
_EXPECTED_S = 10.0

READY = ("pass", "wrong")
"""Statuses of peers that can be timed."""


@dataclass(frozen=True, slots=True)
class Options:
    """How cases are run.

    Attributes:
        backends: ours, as far as this machine can use them.
        threads: of every pool; 0 leaves it to the libraries.
        rounds, seconds: how often each peer takes its turn, and for how long.
        timeout_s: for one answer: a compilation with its warm-up, or a slice.
        memory_gb: private memory of one process; 0 is no limit.
        environment: of our own peers: ``user`` sets nothing, as for a user who imports torch; with ``sleeping`` idle
            threads sleep.
        module: what peers' processes run.
        warm_up_s: longest time of warming up.
        guards: of models that ``torch.compile`` made: exported ones have none.
    """

    backends: tuple[str, ...]
    threads: int = 0
    rounds: int = 7
    seconds: float = 1.0
    timeout_s: float = 900.0
    memory_gb: float = 12.0
    environment: Environment = "user"
    module: str = MODULE
    warm_up_s: float = 10.0
    guards: Guards = "checked"


@dataclass
class Turns:
    """What one peer's turns gave so far."""

    rounds_s: list[float] = field(default_factory=list)
    cores_of_others: list[float] = field(default_factory=list)
    failure: Answer | None = None


def expected_s(case: PeerCase, peers: Sequence[str], options: Options) -> float:
    """Seconds that a case should take, for the bar."""
    taking_part = [peer for peer in with_anchor(peers) if not refusal(peer, case)]
    return sum(EXPECTED_S.get(peer, _EXPECTED_S) + options.rounds * options.seconds for peer in taking_part)


def with_anchor(peers: Sequence[str]) -> tuple[str, ...]:
    """The peers with eager first."""
    return tuple(dict.fromkeys((EAGER, *peers)))


def variables_for(peer: str, environment: Environment) -> dict[str, str | None]:
    """The environment of a peer's process; how idle threads wait is set only for our own, on request.

    Rates were probed before: no process of ours probes them beside others.
    """
    wanted = {**without_decisions(os.environ), **(FROZEN_RATES if is_ours(peer) else {})}
    if environment == "sleeping" and is_ours(peer):
        make_threads_sleep(wanted)
    wanted.setdefault("TORCHINDUCTOR_CACHE_DIR", kernel_folder())
    return {name: wanted.get(name) for name in (*os.environ, *wanted) if wanted.get(name) != os.environ.get(name)}


def kernel_folder() -> str:
    """Where inductor keeps its kernels between runs."""
    folder = private_folder() / "bench-peers" / "inductor"
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)


def calibrate(options: Options) -> str:
    """Let a process probe what is not known of this machine; what is wrong with that, or empty."""
    if not measuring_is_allowed():
        return ""
    request = PeerRequest("calibrate", PeerCase("", 0, "inference", "float32"), threads=options.threads)
    answer = ask(request, options.module, options.timeout_s, options.threads, variables_for(EAGER, "user"))
    if answer["status"] != "pass":
        return f"could not be probed, plans go by priors: {answer['status']}: {answer.get('detail', '')}"
    unsettled = ", ".join(answer.get("unsettled", []))
    return f"was busy while rates were probed, run again half an hour later: {unsettled}" if unsettled else ""


def measure_machine(dtype: str, options: Options) -> Answer:
    """The limits of the machine for a dtype."""
    request = PeerRequest("machine", PeerCase("", 0, "inference", dtype), threads=options.threads)
    return ask(request, options.module, options.timeout_s, options.threads, variables_for(EAGER, "user"))


def time_case(case: PeerCase, peers: Sequence[str], options: Options, show: Show) -> dict[str, dict[str, Any]]:
    """A record per peer, eager's first."""
    peers = with_anchor(peers)
    refused = {peer: {"status": "refused", "detail": why} for peer in peers if (why := refusal(peer, case))}
    with tempfile.TemporaryDirectory(prefix="mixbackend-peers-") as folder, ExitStack() as stack:
        show(f"{case}: reference", 0.0)
        reference = ask_reference(case, folder, options)
        if reference["status"] != "pass":
            failed = {"status": "reference_failed", "detail": f"{reference['status']}: {reference.get('detail', '')}"}
            return {peer: refused.get(peer, failed) for peer in peers}
        workers, ready = _start([peer for peer in peers if peer not in refused], case, folder, options, stack, show)
        turns = take_turns(case, workers, options, show)
    anchor = turns[EAGER].rounds_s if EAGER in turns else []
    shared = {"turns": uuid.uuid4().hex[:12], "anchor_rounds_s": anchor, "work": _work(reference)}
    return {
        peer: refused[peer] if peer in refused else {**_record(ready[peer], turns.get(peer)), **shared}
        for peer in peers
    }


def ask_reference(case: PeerCase, folder: str, options: Options) -> Answer:
    """Let a process write what is right for a case."""
    request = PeerRequest("reference", case, folder=folder, threads=options.threads)
    return ask(request, options.module, options.timeout_s, options.threads, variables_for(EAGER, "user"))


def _work(reference: Answer) -> dict[str, Any]:
    return {"flops": reference["flops"], "bytes": reference["bytes"]}


def peer_request(
    case: PeerCase, peer: str, configuration: Mapping[str, Any] | None, folder: str, options: Options
) -> PeerRequest:
    """What a peer's process is asked."""
    return PeerRequest(
        task="peer",
        case=case,
        peer=peer,
        configuration=configuration,
        folder=folder,
        threads=options.threads,
        memory_bytes=int(options.memory_gb * 1e9),
        warm_up_s=options.warm_up_s,
        guards=options.guards,
    )


def _start(
    peers: Sequence[str], case: PeerCase, folder: str, options: Options, stack: ExitStack, show: Show
) -> tuple[dict[str, Worker], dict[str, Answer]]:
    """Compile the peers one after the other; those that are ready wait, stopped."""
    workers: dict[str, Worker] = {}
    ready: dict[str, Answer] = {}
    for peer in peers:
        show(f"{case}: compiling for {peer}", 0.0)
        if is_ours(peer):
            begin_anew(cache_folder(peer))
        request = peer_request(case, peer, configuration_of(peer, options.backends), folder, options)
        worker = Worker(request, options.module, options.threads, variables_for(peer, options.environment))
        stack.callback(worker.close)
        ready[peer] = worker.answer(options.timeout_s)
        if ready[peer]["status"] in READY:
            worker.pause()
            workers[peer] = worker
        else:
            worker.close()  # its memory is wanted by the others
        show(f"{case}: compiled for {peer}", EXPECTED_S.get(peer, _EXPECTED_S))
    return workers, ready


def take_turns(case: PeerCase, workers: Mapping[str, Worker], options: Options, show: Show) -> dict[str, Turns]:
    """Let peers that wait, stopped, take their turns."""
    turns = {peer: Turns() for peer in workers}
    for number in range(options.rounds):
        for peer in round_order(list(workers), number):
            show(f"{case}: round {number + 1} of {options.rounds}, {peer}", 0.0)
            if turns[peer].failure is None:
                _take_turn(workers[peer], turns[peer], options)
            show(f"{case}: round {number + 1} of {options.rounds}, {peer}", options.seconds)
    return turns


def _take_turn(worker: Worker, turns: Turns, options: Options) -> None:
    worker.resume()
    answer = worker.tell({"seconds": options.seconds}, options.timeout_s)
    if answer["status"] != "pass":
        turns.failure = answer
        return
    worker.pause()
    turns.rounds_s.append(answer["median_s"])
    turns.cores_of_others.append(answer["cores_of_others"])


def _record(ready: Answer, turns: Turns | None) -> dict[str, Any]:
    """What is kept of a peer; figures of one that failed on the way are not."""
    if turns is None or turns.failure is not None:
        last = ready if turns is None or turns.failure is None else turns.failure
        return {"status": last["status"], "detail": last.get("detail", ""), "first_call_s": ready.get("first_call_s")}
    others = statistics.median(turns.cores_of_others) if turns.cores_of_others else None
    return {**ready, "rounds_s": turns.rounds_s, "cores_of_others": others}
