"""How long a first call takes: ``mixbackend bench first-calls``.

Place: beside the model suite. Input: models and a phase. Output: one row per model, seconds of the first call by peer.
Peers, each in a process of its own, one after the other: eager; inductor and the mixture with empty caches, then again
with the caches that they just filled; the mixture without verification, cold and warm, since verification is work that
inductor does not do.
Units: seconds. Fairness: caches are fresh folders; the look at the machine is part of the first call.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixbackend.benchmarks.one_model.accuracy import Phase
from mixbackend.benchmarks.one_model.protocol import MIXTURE, MODULE, PLAIN, Request
from mixbackend.host.processes import ask

DEFAULT_MODELS = (
    "BERT_pytorch",
    "DistilBertForMaskedLM",
    "GPT2ForSequenceClassification",
    "T5Small",
    "Llama-3.2",
    "resnet18",
    "mobilenet_v2",
    "vit_base_patch16_224",
    "convnext_base",
    "pytorch_unet",
)
"""Encoders, decoders, both, convolutional networks old and new, and a segmenter."""

COLD_AND_WARM = ("cold", "warm")


@dataclass(frozen=True)
class FirstCalls:
    """Seconds of the first call of one model by peer; a peer without figures keeps its reason in ``problems``."""

    model: str
    phase: str
    seconds: Mapping[str, float]
    problems: Mapping[str, str]


def measure(
    models: Sequence[str],
    phase: Phase,
    backends: Sequence[str],
    timeout_s: float,
    progress: Callable[[str], None] = lambda text: None,
) -> list[FirstCalls]:
    """Measure every model; what fails becomes a problem of its row."""
    return [_measure_one(model, phase, backends, timeout_s, progress) for model in models]


def _measure_one(
    model: str, phase: Phase, backends: Sequence[str], timeout_s: float, progress: Callable[[str], None]
) -> FirstCalls:
    seconds: dict[str, float] = {}
    problems: dict[str, str] = {}

    def call(peer: str, request: Request, variables: Mapping[str, str]) -> None:
        progress(f"{model}: {peer}")
        answer = ask(request, MODULE, timeout_s, variables=variables)
        if answer["status"] == "pass":
            seconds[peer] = answer["first_call_s"]
        else:
            problems[peer] = f"{answer['status']}: {answer.get('detail', '')}"[:300]

    call("eager", Request("speed", model, phase, backend=PLAIN), {})
    with tempfile.TemporaryDirectory(prefix="mixbackend-first-calls-") as folder:
        inductor = {"TORCHINDUCTOR_CACHE_DIR": str(Path(folder, "inductor"))}
        for state in COLD_AND_WARM:
            call(f"inductor {state}", Request("speed", model, phase, backend="inductor"), inductor)
        for verify, suffix in (("first_call", ""), ("off", ", unverified")):
            configuration = _configuration(backends, Path(folder, verify), verify)
            # Compiled kernels live in the user's cache folder, whatever the configuration says.
            variables = {"XDG_CACHE_HOME": configuration["cache"]["dir"]}
            for state in COLD_AND_WARM:
                request = Request("speed", model, phase, backend=MIXTURE, configuration=configuration)
                call(f"mixture {state}{suffix}", request, variables)
    return FirstCalls(model, phase, seconds, problems)


def _configuration(backends: Sequence[str], cache: Path, verify: str) -> dict[str, Any]:
    cache.mkdir(mode=0o700)
    return {"backends": list(backends), "cache": {"dir": str(cache)}, "verify": {"when": verify}}
