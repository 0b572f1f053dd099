"""B1: ``generate()`` of a Llama-style model with a static cache gives eager's tokens where its graphs, which move the
cache's position on, are compared at their first calls: no run of ours may move it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from flat_costs import FlatCosts
from stand_in_backends import Sleeper, try_at_once

from mixbackend.backends.eager import EagerBackend
from mixbackend.benchmarks.models.torchvision_shim import enable_torchvision
from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import load_config
from mixbackend.cost import costs as costs_module
from mixbackend.cost.costs import SessionCosts
from mixbackend.registry import isolated_registry
from mixbackend.select.live import processor_challengers

NEW = 24


@pytest.fixture
def model() -> Any:
    pytest.importorskip("transformers", reason="generate() is that of transformers")
    enable_torchvision()
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 100}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, eos_token_id=None, pad_token_id=0)).eval()


def _tokens(model: Any, length: int, **options: Any) -> list[int]:
    torch.manual_seed(length)
    ids = torch.randint(3, 100, (1, length))
    with torch.no_grad():
        found = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=NEW,
            min_new_tokens=NEW,
            cache_implementation="static",
            **options,
        )
    return found[0, length:].tolist()


def test_tokens_are_those_of_eager(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.generation.configuration_utils import CompileConfig

    monkeypatch.setattr(costs_module, "cost_model", lambda *_, **__: FlatCosts(seconds={"eager": 1e-3}))
    monkeypatch.setattr(processor_challengers, "LEAST_S", 0.0)
    monkeypatch.setattr(SessionCosts, "comparable", lambda self, graph: {"one", "other"})
    try_at_once(monkeypatch)
    torch._dynamo.reset()
    other = Sleeper("other", 0.0)
    with isolated_registry(Sleeper("one", 0.001), other, EagerBackend()):
        settings = {"backends": ["one", "other", "eager"], "cache": {"dir": str(tmp_path)}, "on_failure": "raise"}
        mixture = Mixture(load_config(settings))
        # A function, because the configuration of a generation is copied deeply.
        compiled = CompileConfig(backend=lambda *arguments, **_: mixture(*arguments), mode=None, fullgraph=False)
        compiled._compile_all_devices = True
        for length in (9, 17):
            eagers = _tokens(model, length, disable_compile=True)
            assert _tokens(model, length, compile_config=compiled) == eagers
    torch._dynamo.reset()
    assert other.calls > 0, "another program ran some of the calls"
