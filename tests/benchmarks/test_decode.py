"""Steps of generation beside other engines: the peers run the same model, and figures are what they say."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from mixbackend.benchmarks.commands import decode as command
from mixbackend.benchmarks.decode.model import Int4Linear, Int8Linear, bytes_of_step, make_model
from mixbackend.benchmarks.decode.request import MODULE, DecodeRequest, request_from_line
from mixbackend.benchmarks.decode.sessions import first_of, open_session
from mixbackend.host.processes import ask

REQUEST = DecodeRequest("eager", "tiny", "float32", context=12, capacity=32, told=8, threads=2)


def tokens_of(request: DecodeRequest) -> list[int]:
    session = open_session(request)
    for _ in range(3):
        session.step(session.rewind())
    told = [session.rewind()]
    for _ in range(request.told - 1):
        told.append(session.step(told[-1]))
    return list(map(first_of, told))


def told_by_worker(request: DecodeRequest) -> list[int]:
    """By a process of its own, as the command runs it: llama.cpp's tiles and torch's do not agree within one."""
    answer = ask(request, MODULE, 120.0, request.threads)
    assert answer["status"] == "pass", answer
    return list(answer["tokens"])


def with_peer(peer: str, precision: str = "float32", **changed: object) -> DecodeRequest:
    asked = {**json.loads(REQUEST.to_line()), "peer": peer, "precision": precision, **changed}
    return request_from_line(json.dumps(asked))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize(
    ("peer", "package", "told"),
    [("openvino", "openvino", tokens_of), ("llama.cpp", "llama_cpp", told_by_worker)],
    ids=["openvino", "llama.cpp"],
)
def test_engines_continue_the_prompt_as_eager_does(peer, package, told, precision):
    pytest.importorskip(package)
    eager = tokens_of(with_peer("eager", precision))
    assert len(set(eager)) > 2, "a model that repeats itself shows nothing"
    agreeing = [mine == right for mine, right in zip(told(with_peer(peer, precision)), eager, strict=True)]
    # Codes and 16 bits of others are not the same numbers: the first token is.
    assert all(agreeing[: 8 if precision == "float32" else 1])


@pytest.mark.nightly
def test_four_bits_continue_the_prompt_in_the_mixture_and_llama_cpp():
    eager = tokens_of(with_peer("eager", "int4"))
    assert len(set(eager)) > 2 and tokens_of(with_peer("mixture", "int4"))[:4] == eager[:4]
    pytest.importorskip("llama_cpp")
    assert told_by_worker(with_peer("llama.cpp", "int4"))[0] == eager[0]


def test_sequences_of_a_batch_are_their_own():
    session, alone = (open_session(with_peer("eager", batch=batch)) for batch in (3, 1))
    token, single = session.rewind(), alone.rewind()
    assert token.shape == (3, 1) and len(set(token.flatten().tolist())) > 1
    for _ in range(4):
        token, single = session.step(token), alone.step(single)
        assert token.shape == (3, 1)
    assert session.bytes_of_step > alone.bytes_of_step


def test_prefill_says_what_follows_the_prompt():
    session = open_session(with_peer("eager", prefill=True))
    expected = first_of(open_session(with_peer("eager")).rewind())
    assert [first_of(session.step(session.rewind())) for _ in range(2)] == [expected] * 2


def test_codes_are_within_half_a_step_of_the_weight():
    linear = nn.Linear(7, 5, bias=False)
    short = Int8Linear(linear)
    error = (short.codes * short.scale[:, None] - linear.weight).abs()
    assert (error <= short.scale[:, None] * 0.5001).all()
    x = torch.randn(3, 7)
    torch.testing.assert_close(short(x), x @ (short.codes * short.scale[:, None]).t())


def test_four_bits_of_a_group_are_within_half_a_step_of_the_weight():
    torch.manual_seed(0)  # of other weights, one in a million is beyond the bound by roundings alone
    linear = nn.Linear(64, 16, bias=False).bfloat16()
    rows = Int4Linear(linear)(torch.eye(64, dtype=torch.bfloat16)).float().t().view(16, 2, 32)
    weight = linear.weight.float().view(16, 2, 32)
    step = (weight.amax(-1, keepdim=True) - weight.amin(-1, keepdim=True)) / 15
    # Half a step of the codes, and the rounding of scale, middle and product to bfloat16.
    assert ((rows - weight).abs() <= 0.5 * step + 0.02 * weight.abs().amax()).all()


def test_bytes_of_a_step_are_weights_without_the_embedding_and_what_the_cache_holds():
    model = make_model("tiny", "bfloat16")
    weights = sum(weight.numel() for weight in model.parameters()) - model.model.embed_tokens.weight.numel()
    inverse = sum(value.nbytes for value in model.buffers())
    assert bytes_of_step(model, 0) == 2 * weights + inverse
    config = model.config
    held = 2 * 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    assert bytes_of_step(model, 10) - bytes_of_step(model, 0) == 10 * held


@pytest.mark.nightly
def test_the_command_compares_with_eager_and_a_copy(capsys):
    arguments = "--shape tiny --precisions float32 --peers eager,copy,llama.cpp --context 8 --capacity 16 --tokens 4"
    assert command.main([*arguments.split(), "--rounds", "2", "--seconds", "0.05", "--json"]) == 0
    rows = {row["peer"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    eager, copy = rows["eager"], rows["copy"]
    assert eager["agreeing"] == 4
    assert eager["of_copy"] == pytest.approx(eager["gb_per_s"] / copy["gb_per_s"])
    assert rows["llama.cpp"]["status"] in ("pass", "missing")


def test_unknown_peers_are_refused(capsys):
    with pytest.raises(SystemExit):
        command.main(["--peers", "eagre"])
    assert "eagre" in capsys.readouterr().err
