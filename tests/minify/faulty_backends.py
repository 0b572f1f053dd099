"""Backends that are right but for one planted fault, each in one op; processes that minification starts import them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.fx
from plain_backend import PlainBackend

from mixbackend.contracts import CompiledRegion, OpNode, OpView, Region, Supported, Verdict, refuse_special


class Faulty(PlainBackend):
    """Runs regions op by op, as eager does; ``spoil`` gets the result of every op that the fault is planted in.

    Attributes:
        op: where it is planted.
        phase: of the regions that have it.
    """

    op: ClassVar[str] = ""
    phase: ClassVar[str] = ""

    def judge(self, view: OpView) -> Verdict:
        return refuse_special(view) or Supported(cost=1e-7)

    def compile(self, region: Region) -> CompiledRegion:
        planted = [
            view.node.name
            for view in region.views
            if view.op == self.op and self.phase in ("", region.phase) and self.planted(view.node, region)
        ]
        self.compiling(planted)

        def run(inputs: Sequence[Any]) -> list[torch.Tensor]:
            return [value.clone() for value in _Spoiling(region.graph_module, planted, self).run(*inputs)]

        return CompiledRegion(run, strides="unknown")

    def planted(self, node: OpNode, region: Region) -> bool:
        """Whether the fault is in this op."""
        return True

    def compiling(self, planted: Sequence[str]) -> None:
        """Before a region is compiled, with the names of its ops that have the fault."""

    def spoil(self, result: torch.Tensor) -> torch.Tensor:
        """A result with the fault."""
        return result


class _Spoiling(torch.fx.Interpreter):
    def __init__(self, module: torch.fx.GraphModule, planted: Sequence[str], backend: Faulty) -> None:
        super().__init__(module)
        self._planted, self._backend = frozenset(planted), backend

    def run_node(self, n: torch.fx.Node) -> Any:
        value = super().run_node(n)
        return self._backend.spoil(value) if n.name in self._planted else value


class Right(Faulty):
    """Has no fault."""

    name = "right"


class WrongGelu(Faulty):
    """One number of each GELU is off."""

    name, op = "wrong_gelu", "aten.gelu.default"

    def spoil(self, result):
        result = result.clone()
        result.view(-1)[-1] += 0.5
        return result


class WrongSoftmax(Faulty):
    """Rows of a softmax do not sum to one, in forwards of training."""

    name, op, phase = "wrong_softmax", "aten._safe_softmax.default", "forward"

    def spoil(self, result):
        return result * 1.01


class WrongNormGradient(Faulty):
    """The backward of a layer norm leaves out a mean."""

    name, op, phase = "wrong_norm_gradient", "aten.native_layer_norm_backward.default", "backward"

    def spoil(self, result):
        return (result[0] + 0.1, *result[1:])


class WrongWeightGradient(Faulty):
    """The gradient of a convolution's weights is transposed in its last dimensions."""

    name, op, phase = "wrong_weight_gradient", "aten.convolution_backward.default", "backward"

    def spoil(self, result):
        return (result[0], None if result[1] is None else result[1].flip(-1) * 1.5, result[2])


class WrongLongRows(Faulty):
    """Products with more than 100 terms miss the last of them."""

    name, op = "wrong_long_rows", "aten.addmm.default"

    def planted(self, node, region):
        sizes = {item.name: item.meta.shape for item in region.inputs}
        rows = sizes.get(node.references()[1]) or self.shape_in(region, node.references()[1])
        return int(rows[-1]) > 100

    @staticmethod
    def shape_in(region, name):
        (found,) = [node for node in region.graph_module.graph.nodes if node.name == name]
        return found.meta["val"].shape

    def spoil(self, result):
        return result + 0.3


class EndsRunning(Faulty):
    """A kernel reads memory that is not there."""

    name, op = "ends_running", "aten.max_pool2d_with_indices.default"

    def spoil(self, result):
        os.kill(os.getpid(), signal.SIGSEGV)
        return result


class EndsCompiling(Faulty):
    """The compiler runs into an assertion of its own."""

    name, op = "ends_compiling", "aten.mean.dim"

    def compiling(self, planted):
        if planted:
            os.abort()


class RaisesOnPairs(Faulty):
    """The fusion of a sigmoid with the product that reads it has no kernel."""

    name, op = "raises_on_pairs", "aten.mul.Tensor"

    def planted(self, node, region):
        made = {item.node.name: item.op for item in region.views}
        return "aten.sigmoid.default" in [made.get(name) for name in node.references()]

    def compiling(self, planted):
        if planted:
            raise NotImplementedError(f"no kernel for sigmoid_mul ({', '.join(planted)})")


class HangsRunning(Faulty):
    """A kernel waits for a thread that has ended."""

    name, op = "hangs_running", "aten.embedding.default"

    def spoil(self, result):
        while True:
            time.sleep(1)


class SlowNorm(Faulty):
    """A kernel takes 40 ms more than it should."""

    name, op = "slow_norm", "aten.native_layer_norm.default"

    def spoil(self, result):
        time.sleep(0.04)
        return result


class RaisesRunning(Faulty):
    """A kernel refuses what its compiler has accepted, in backwards."""

    name, op, phase = "raises_running", "aten.threshold_backward.default", "backward"

    def spoil(self, result):
        raise ValueError("strides are not supported")


class WrongTanhGradient(Faulty):
    """The backward of a tanh takes the input for the result."""

    name, op, phase = "wrong_tanh_gradient", "aten.tanh_backward.default", "backward"

    def spoil(self, result):
        return result * 1.5


class SlowTanh(SlowNorm):
    """Another op with a slow kernel."""

    name, op = "slow_tanh", "aten.tanh.default"


class RaisesOnTanh(RaisesRunning):
    """The same of another op."""

    name, op = "raises_on_tanh", "aten.tanh_backward.default"
