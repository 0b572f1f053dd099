"""``generate()``: tokens and scores with dynamic and static caches are eager's."""

from __future__ import annotations

import pytest
import torch

from .held_against_eager import hold_report, hold_results

transformers = pytest.importorskip("transformers", reason="transformers is not installed")


def _model(dtype=torch.float32):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.3,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
    )
    return transformers.LlamaForCausalLM(config).to(dtype).eval()


def _generated(model, prompt, **options):
    found = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=8,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    return found.sequences, list(found.scores)


def _prompts():
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(2, 97, (2, length), generator=generator) for length in (5, 9, 17)]


def _hold(compiled, options, reference_options):
    eager, exact = _model(), _model(torch.float64)
    for prompt in _prompts():
        tokens, scores = _generated(compiled, prompt, **options)
        expected, eager_scores = _generated(eager, prompt, **reference_options)
        _, exact_scores = _generated(exact, prompt, **reference_options)
        assert torch.equal(tokens, expected)
        hold_results(scores, eager_scores, exact_scores)


@pytest.mark.nightly
def test_dynamic_cache(mixture):
    model = _model()
    model.forward = torch.compile(model.forward, backend=mixture)
    _hold(model, {}, {})
    hold_report(mixture)


@pytest.mark.nightly
def test_static_cache(mixture):
    model = _model()
    model.forward = torch.compile(model.forward, backend=mixture)
    _hold(model, {"cache_implementation": "static"}, {"cache_implementation": "static"})
    hold_report(mixture)


@pytest.mark.nightly
@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_generate_compiles_by_itself(mixture, mode):
    """The way of its documentation: the configuration names the backend, here as the object."""
    compile_config = transformers.CompileConfig(backend=mixture, mode=mode)
    compile_config._compile_all_devices = True
    _hold(
        _model(),
        {"cache_implementation": "static", "compile_config": compile_config},
        {"cache_implementation": "static", "disable_compile": True},
    )
    hold_report(mixture, besides="runs without CUDA graphs")


@pytest.mark.nightly
def test_a_second_model_in_the_same_process(mixture):
    for _ in range(2):
        model = _model()
        model.forward = torch.compile(model.forward, backend=mixture)
        _hold(model, {"cache_implementation": "static"}, {"cache_implementation": "static"})
    hold_report(mixture)
