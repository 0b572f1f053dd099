"""Blocks of real architectures, captured once and repeated into graphs of any size.

Place: what ``mixbackend bench partitioner`` places. Input: plain torch code of one block. Output: ``OpGraph``s.
The blocks: a BERT encoder layer, a ResNet-50 bottleneck, a T5 decoder layer (all layers share position bias, mask and
the encoder's states), a DenseNet block (every layer reads all before it).
Invariants: deterministic; a repeated graph is a chain: the first output of one block is the first input of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
import torch.nn.functional as functional
from torch import Tensor

from mixbackend.contracts import Argument, GraphInput, InputRole, NodeRef, OpGraph, OpNode
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.trace import trace_graph


@dataclass(frozen=True, eq=False)
class Block:
    """One captured block.

    Attributes:
        name: of the architecture.
        graph: captured once.
        shared: positions of the inputs that all repetitions share; the others, but the first, are weights of their own.
    """

    name: str
    graph: OpGraph
    shared: frozenset[int]


def _attention(query: Tensor, key: Tensor, value: Tensor, heads: int, bias: Tensor | None = None) -> Tensor:
    def split(tensor: Tensor) -> Tensor:
        return tensor.view(tensor.shape[0], tensor.shape[1], heads, -1).transpose(1, 2)

    scores = torch.matmul(split(query), split(key).transpose(2, 3)) * 0.125
    weights = torch.softmax(scores if bias is None else scores + bias, dim=-1)
    mixed = torch.matmul(weights, split(value)).transpose(1, 2)
    return mixed.reshape(query.shape)


def bert_layer(states: Tensor, mask: Tensor, *weights: Tensor) -> Tensor:
    """Post-norm encoder layer with biases and gelu."""
    wq, bq, wk, bk, wv, bv, wo, bo, norm1, shift1, wi, bi, wf, bf, norm2, shift2 = weights
    linear = functional.linear
    mixed = _attention(linear(states, wq, bq), linear(states, wk, bk), linear(states, wv, bv), 12, mask)
    states = functional.layer_norm(linear(mixed, wo, bo) + states, (768,), norm1, shift1)
    hidden = functional.gelu(linear(states, wi, bi))
    return functional.layer_norm(linear(hidden, wf, bf) + states, (768,), norm2, shift2)


def resnet_bottleneck(image: Tensor, *weights: Tensor) -> Tensor:
    """1x1, 3x3, 1x1 convolutions with batch normalisation and a residual."""
    kernels, norms = weights[:3], weights[3:]
    result = image
    for index, kernel in enumerate(kernels):
        result = functional.conv2d(result, kernel, padding=kernel.shape[-1] // 2)
        mean, variance, scale, shift = norms[4 * index : 4 * index + 4]
        result = functional.batch_norm(result, mean, variance, scale, shift, training=False)
        result = functional.relu(result) if index < 2 else result
    return functional.relu(result + image)


def t5_decoder_layer(states: Tensor, encoded: Tensor, bias: Tensor, mask: Tensor, *weights: Tensor) -> Tensor:
    """Pre-norm self attention, cross attention and a gated feed-forward, with T5's scale-only norm."""
    norm1, wq, wk, wv, wo, norm2, cq, ck, cv, co, norm3, wi, wg, wf = weights
    linear = functional.linear

    def normed(tensor: Tensor, scale: Tensor) -> Tensor:
        variance = tensor.pow(2).mean(-1, keepdim=True)
        return scale * (tensor * torch.rsqrt(variance + 1e-6))

    inner = normed(states, norm1)
    states = states + linear(_attention(linear(inner, wq), linear(inner, wk), linear(inner, wv), 8, bias), wo)
    inner = normed(states, norm2)
    states = states + linear(_attention(linear(inner, cq), linear(encoded, ck), linear(encoded, cv), 8, mask), co)
    inner = normed(states, norm3)
    gated = functional.gelu(linear(inner, wi), approximate="tanh") * linear(inner, wg)
    return states + linear(gated, wf)


def densenet_block(image: Tensor, *weights: Tensor) -> Tensor:
    """Six layers, each on the concatenation of all before it, and a transition back to 64 channels."""
    features = [image]
    for index in range(6):
        first, second, mean, variance, scale, shift = weights[6 * index : 6 * index + 6]
        joined = torch.cat(features, dim=1)
        normal = functional.batch_norm(joined, mean, variance, scale, shift, training=False)
        inner = functional.conv2d(functional.relu(normal), first)
        features.append(functional.conv2d(functional.relu(inner), second, padding=1))
    return functional.conv2d(torch.cat(features, dim=1), weights[-1])


def _bert_inputs() -> list[Tensor]:
    square, vector = torch.empty(768, 768), torch.empty(768)
    layer = [square, vector] * 4 + [vector, vector]
    return [
        torch.empty(1, 128, 768),
        torch.empty(1, 1, 1, 128),
        *layer,
        torch.empty(3072, 768),
        torch.empty(3072),
        torch.empty(768, 3072),
        *[vector] * 3,
    ]


def _resnet_inputs() -> list[Tensor]:
    kernels = [torch.empty(64, 256, 1, 1), torch.empty(64, 64, 3, 3), torch.empty(256, 64, 1, 1)]
    return [torch.empty(1, 256, 56, 56), *kernels, *[torch.empty(size) for size in (64, 64, 256) for _ in range(4)]]


def _t5_inputs() -> list[Tensor]:
    square, vector, wide = torch.empty(512, 512), torch.empty(512), torch.empty(1024, 512)
    attention = [vector, square, square, square, square]
    return [
        torch.empty(1, 64, 512),
        torch.empty(1, 96, 512),
        torch.empty(1, 8, 64, 64),
        torch.empty(1, 1, 1, 96),
        *attention * 2,
        *[vector, wide, wide, torch.empty(512, 1024)],
    ]


def _densenet_inputs() -> list[Tensor]:
    inputs = [torch.empty(1, 64, 28, 28)]
    for index in range(6):
        channels = 64 + 32 * index
        inputs += [torch.empty(128, channels, 1, 1), torch.empty(32, 128, 3, 3)]
        inputs += [torch.empty(channels) for _ in range(4)]
    return [*inputs, torch.empty(64, 64 + 32 * 6, 1, 1)]


_SOURCES: tuple[tuple[str, Callable[..., Tensor], Callable[[], list[Tensor]], int], ...] = (
    ("bert", bert_layer, _bert_inputs, 2),
    ("resnet", resnet_bottleneck, _resnet_inputs, 1),
    ("t5_decoder", t5_decoder_layer, _t5_inputs, 4),
    ("densenet", densenet_block, _densenet_inputs, 1),
)


@lru_cache(maxsize=1)
def captured_blocks() -> tuple[Block, ...]:
    """The four blocks, captured."""
    blocks = []
    for name, function, inputs, activations in _SOURCES:
        arguments = inputs()
        roles = dict.fromkeys(range(activations, len(arguments)), PlaceholderRole(InputRole.PARAMETER))
        _, graph = trace_graph(function, arguments, graph_id=name, roles=roles)
        blocks.append(Block(name, graph, frozenset(range(1, activations))))
    return tuple(blocks)


def repeated(blocks: Sequence[Block], nodes: int) -> OpGraph:
    """Chains of the blocks with about this many nodes in all, one chain per block, side by side in one graph."""
    inputs: list[GraphInput] = []
    ops: list[OpNode] = []
    outputs: list[str] = []
    for block in blocks:
        last = block.graph.inputs[0].name + f"_{block.name}"
        inputs.append(replace(block.graph.inputs[0], name=last))
        count = max(1, round(nodes / len(blocks) / len(block.graph.placed_nodes)))
        for index in range(count):
            last = _append(block, index, last, inputs, ops)
        outputs.append(last)
    return OpGraph(f"repeated-{nodes}", "inference", tuple(inputs), tuple(ops), tuple(outputs))


def _append(block: Block, index: int, first: str, inputs: list[GraphInput], ops: list[OpNode]) -> str:
    names = {block.graph.inputs[0].name: first}
    for place, item in enumerate(block.graph.inputs[1:], start=1):
        shared = place in block.shared
        names[item.name] = f"{item.name}_{block.name}" if shared else f"{item.name}_{block.name}_{index}"
        if index == 0 or not shared:
            inputs.append(replace(item, name=names[item.name]))
    for node in block.graph.nodes:
        names[node.name] = f"{node.name}_{block.name}_{index}"
        arguments = tuple((key, _renamed(value, names)) for key, value in node.arguments)
        ops.append(replace(node, name=names[node.name], arguments=arguments, module=f"{block.name}.{index}"))
    result = block.graph.outputs[0]
    assert result is not None
    return names[result]


def _renamed(value: Argument, names: dict[str, str]) -> Argument:
    if isinstance(value, NodeRef):
        return NodeRef(names[value.name])
    if isinstance(value, tuple):
        return tuple(_renamed(item, names) for item in value)
    return value
