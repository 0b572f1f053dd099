"""The peers: which take part, what each is told, and which cannot take part in what.

Place: asked by ``command``, ``turns`` and ``summary``. Pure but for looking up which backends this machine has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mixbackend import registry
from mixbackend.benchmarks.peers.request import PeerCase
from mixbackend.storage import private_folder

EAGER = "eager"
INDUCTORS = ("inductor", "inductor-freezing", "inductor-max-autotune")
RIVALS = (EAGER, *INDUCTORS, "onnxruntime", "openvino")
"""What users have today, without us."""

MIXTURE = "mixture"
WITHOUT_OPENVINO = "mixture-without-openvino"
TUNED = "tuned"
"""The mixture after its candidates were measured: tuning belongs to its first call."""

TUNED_WITHOUT_OPENVINO = "tuned-without-openvino"
MIXTURES = (MIXTURE, WITHOUT_OPENVINO, TUNED, TUNED_WITHOUT_OPENVINO)
SINGLE = "only-"
"""Prefix of mixtures that may use one backend, with eager for what it cannot run."""

_WHOLE_MODEL = ("onnxruntime", "openvino")


def usable_backends() -> tuple[str, ...]:
    """Backends of ours that this machine can use, without the fallback."""
    return tuple(info.name for info in registry.backends() if info.available and info.name != registry.FALLBACK)


def peer_names(backends: Sequence[str]) -> tuple[str, ...]:
    """Every peer, given our usable backends."""
    mixtures = MIXTURES if "openvino" in backends else (MIXTURE, TUNED)
    return (*RIVALS, *mixtures, *(f"{SINGLE}{name}" for name in backends))


def is_ours(peer: str) -> bool:
    """Whether a peer is made of our backends."""
    return peer in MIXTURES or peer.startswith(SINGLE)


def is_compiled(peer: str) -> bool:
    """Whether a peer is a model that ``torch.compile`` made."""
    return peer in INDUCTORS or is_ours(peer)


def groups(backends: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """Names that stand for several peers."""
    singles = tuple(f"{SINGLE}{name}" for name in backends)
    return {"singles": singles, "placement": (EAGER, *singles, MIXTURE, TUNED)}


def cache_folder(peer: str) -> Path:
    """Where a peer of ours keeps artifacts and its database, which is begun anew for every case."""
    return private_folder() / "bench-peers" / "caches" / peer


def configuration_of(peer: str, backends: Sequence[str]) -> Mapping[str, Any] | None:
    """What ``mixbackend.auto`` is told; ``None`` for peers that are not ours."""
    if not is_ours(peer):
        return None
    allowed = {"backends": [peer.removeprefix(SINGLE), registry.FALLBACK]} if peer.startswith(SINGLE) else {}
    return {**allowed, **_allowed(peer, backends), **_search(peer), "cache": {"dir": str(cache_folder(peer))}}


def _allowed(peer: str, backends: Sequence[str]) -> Mapping[str, Any]:
    if peer not in (WITHOUT_OPENVINO, TUNED_WITHOUT_OPENVINO):
        return {}
    return {"backends": [*(name for name in backends if name != "openvino"), registry.FALLBACK]}


def _search(peer: str) -> Mapping[str, Any]:
    return {"search": {"mode": "measure"}} if peer in (TUNED, TUNED_WITHOUT_OPENVINO) else {}


def refusal(peer: str, case: PeerCase) -> str:
    """Why a peer has no part in a case; empty if it has one."""
    if case.phase == "training" and peer in _WHOLE_MODEL:
        return "runs exported models, which cannot be trained"
    if case.phase == "training" and peer == "inductor-freezing":
        return "freezing makes weights constants, which cannot be trained"
    if case.dtype == "bfloat16" and peer == "onnxruntime":
        return "its CPU kernels have no bfloat16"
    return ""
