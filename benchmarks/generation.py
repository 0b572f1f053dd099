"""Generation: tokens of ``generate()`` with a static cache, beside eager's and inductor's.

Place: a command, ``python -m mixbackend.benchmarks.generation``; needs transformers, and a GPU for the default size.
Input: a Llama-style model with random weights, prompts of several lengths, two models in one process.
Output: for each way of compiling and each prompt, how many tokens in front equal eager's; one JSON line per way.
Right is what agrees with eager at least as long as inductor's default mode does: in 16 bits two tokens of random
weights may be as likely as one another.
Invariants: each way runs in a process of its own, with caches of its own.
Non-goals: speed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mixbackend.backends.common.python_process import module_command
from mixbackend.benchmarks.decode.request import SHAPES, Shape

WAYS = ("eager", "inductor", "inductor-reduce-overhead", "mixbackend", "mixbackend-reduce-overhead")
_PROMPTS = (300, 512, 777)
_MODELS = 2


TINY = Shape(64, 128, 2, 4, 2, 500)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all ways, print what agrees; 1 if ours agrees for fewer tokens than inductor somewhere, or fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--tiny", action="store_true", help="a model of two narrow layers and short prompts")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--limit-s", type=float, default=540, help="seconds for each way")
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.one:
        print(json.dumps(_run(chosen.one, chosen.device, chosen.tokens, chosen.tiny)), flush=True)
        return 0
    with ThreadPoolExecutor(len(chosen.ways)) as pool:
        results = dict(zip(chosen.ways, pool.map(lambda way: _apart(way, chosen), chosen.ways), strict=True))
    return _judge(results)


def _apart(way: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """One way in a process of its own."""
    command = module_command("mixbackend.benchmarks.generation", "--one", way)
    command += ["--device", chosen.device, "--tokens", str(chosen.tokens), *(["--tiny"] if chosen.tiny else [])]
    with tempfile.TemporaryDirectory() as folder:
        caches = {name: str(Path(folder) / name) for name in ("XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR")}
        for path in caches.values():
            Path(path).mkdir(mode=0o700)
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, env={**os.environ, **caches}, timeout=chosen.limit_s
            )
        except subprocess.TimeoutExpired:
            return {"way": way, "error": f"not done after {chosen.limit_s:.0f} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        return {"way": way, "error": "\n".join(done.stderr.strip().splitlines()[-12:])}
    return json.loads(lines[-1])


def _judge(results: Mapping[str, Mapping[str, Any]]) -> int:
    """Print how long each way agrees with eager; whether ours fails."""
    expected, failed = results.get("eager", {}).get("tokens"), False
    bar: list[int] | None = None
    for way, result in results.items():
        agreeing = None
        if expected and "tokens" in result:
            agreeing = [_agreeing(mine, right) for mine, right in zip(result["tokens"], expected, strict=True)]
            bar = agreeing if way == "inductor" else bar
        shown = {key: value for key, value in result.items() if key != "tokens"}
        print(json.dumps({**shown, "agreeing": agreeing}), flush=True)
        if way.startswith("mixbackend"):
            short = agreeing is None or (bar is not None and any(a < b for a, b in zip(agreeing, bar, strict=True)))
            failed = failed or short
    return int(failed)


def _agreeing(mine: Sequence[int], expected: Sequence[int]) -> int:
    """How many tokens in front are equal."""
    return next((place for place, pair in enumerate(zip(mine, expected, strict=True)) if pair[0] != pair[1]), len(mine))


def _run(way: str, device: str, tokens: int, tiny: bool) -> dict[str, Any]:
    """Generate with two models; all prompts' tokens, in order."""
    from mixbackend.benchmarks.models.torchvision_shim import enable_torchvision

    library = enable_torchvision()
    found, shape = [], TINY if tiny else SHAPES["1.2b"]
    for seed in range(_MODELS):
        model = _model(shape, seed, device)
        for length in (20, 33, 50) if tiny else _PROMPTS:
            found.append(_generate(model, way, length, tokens, shape.vocabulary, device))
        del model
    del library
    return {"way": way, "tokens": found, **(_report() if way.startswith("mixbackend") else {})}


def _model(shape: Shape, seed: int, device: str) -> Any:
    import torch
    import transformers

    from mixbackend.benchmarks.decode.model import llama_of

    torch.manual_seed(seed)
    model: Any = transformers.LlamaForCausalLM(llama_of(shape))
    return model.to(device=device, dtype=torch.bfloat16).eval()


def _generate(model: Any, way: str, length: int, tokens: int, vocabulary: int, device: str) -> list[int]:
    import torch
    from transformers.generation.configuration_utils import CompileConfig

    import mixbackend

    options: dict[str, Any] = {"disable_compile": True}
    if way != "eager":
        backend = mixbackend.auto() if way.startswith("mixbackend") else "inductor"
        mode: Any = "reduce-overhead" if way.endswith("reduce-overhead") else None
        options = {"compile_config": CompileConfig(backend=backend, mode=mode, fullgraph=False, dynamic=None)}
    torch.manual_seed(length)
    prompt = torch.randint(3, vocabulary, (1, length), device=device)
    with torch.no_grad():
        answer = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            cache_implementation="static",
            **options,
        )
    return answer[0, length:].tolist()


def _report() -> dict[str, Any]:
    import mixbackend

    events = mixbackend.report().to_dict()["events"]
    return {"events": sorted({f"{event['kind']}: {event['detail'][:160]}" for event in events})}


if __name__ == "__main__":
    sys.exit(main())
