"""What a process of ``bench decode`` is asked: one line of JSON.

Place: between ``turns`` (the asking side) and ``worker`` (the answering side).
Invariants: only plain data crosses; a request says everything that the process must know.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mixbackend.benchmarks.one_model.protocol import arguments_in_line

MODULE = "mixbackend.benchmarks.decode.worker"

COPY = "copy"
"""The peer that copies memory as large as the weights: what reading them is held against."""
PEERS: Mapping[str, tuple[str, ...]] = {
    "cpu": ("eager", "inductor", "mixture", "openvino", "llama.cpp", COPY),
    "cuda": ("eager", "inductor", "inductor:reduce-overhead", "mixture", "mixture:reduce-overhead", COPY),
}
"""By the device that they run on; after the colon, a mode of torch.compile."""

Precision = Literal["float32", "bfloat16", "int8", "int4"]
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "int8", "int4")
"""With ``int8``, weights of products are codes of 8 bits with a scale for each output; with ``int4`` of 4 bits with a
scale and a middle for each group, but the head's, which are of 8; the rest is bfloat16."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a Llama-style decoder."""

    width: int
    inner: int
    layers: int
    heads: int
    shared_heads: int
    vocabulary: int


SHAPES: Mapping[str, Shape] = {
    "tiny": Shape(64, 160, 2, 4, 2, 512),
    "0.15b": Shape(1024, 2816, 8, 16, 4, 32_000),
    "0.3b": Shape(1024, 4096, 16, 16, 4, 32_000),
    "1.2b": Shape(2048, 8192, 16, 32, 8, 128_256),
    "8b": Shape(4096, 14_336, 32, 32, 8, 128_256),
}


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """One peer's work.

    Attributes:
        peer: of ``PEERS``.
        shape: of ``SHAPES``.
        precision: of ``PRECISIONS``.
        context: tokens of the prompt, which the cache holds before each timed slice.
        capacity: tokens that the cache can hold.
        told: tokens after the prompt that are told, to be compared.
        threads: of every pool.
        settle_s: for the mixture to settle, at most.
        device: "cpu" or "cuda".
        batch: sequences.
        prefill: whether a step is the whole prompt instead of one token.
    """

    peer: str
    shape: str
    precision: Precision
    context: int
    capacity: int
    told: int
    threads: int
    settle_s: float = 120.0
    device: str = "cpu"
    batch: int = 1
    prefill: bool = False

    def to_line(self) -> str:
        """One line of JSON."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)


def request_from_line(line: str) -> DecodeRequest:
    """The inverse of ``DecodeRequest.to_line``.

    Raises:
        ValueError: the line is not JSON, or not a request.
    """
    return DecodeRequest(**arguments_in_line(line, DecodeRequest))
