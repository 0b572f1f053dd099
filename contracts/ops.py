"""Operators as values: what the planner and the backends see of one graph node.

Place: made by ``describe`` from the captured graph; judged by backends; read by cost model, partitioner and report.
Invariants: no reference to torch graphs or tensors; equal for equal input; arguments carry schema names with all
defaults filled in, so that two spellings of one call are one value.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, Union

import torch

from mixbackend.contracts.sizes import Condition, SymbolicSize, Truth, known
from mixbackend.contracts.tensors import TensorMeta

Phase = Literal["inference", "forward", "backward"]
"""Which graph an op belongs to. ``forward`` is the forward of a training step, ``inference`` runs without gradients."""


@dataclass(frozen=True, slots=True)
class NodeRef:
    """The value of another node, by its name in the graph."""

    name: str

    def __str__(self) -> str:
        return f"%{self.name}"


@dataclass(frozen=True, slots=True)
class Opaque:
    """An argument that is not data (a subgraph of a higher-order op, a generator): compared by its text."""

    text: str

    def __str__(self) -> str:
        return f"<{self.text}>"


Scalar = Union[int, float, bool, complex, str, None, torch.dtype, torch.device, torch.layout, torch.memory_format]
Argument = Union[NodeRef, SymbolicSize, Opaque, Scalar, tuple["Argument", ...]]
ValueMeta = Union[TensorMeta, SymbolicSize, int, float, bool, None]
"""What one output of a node is: a tensor, a symbolic or plain number, or nothing."""


COPY_INTO = "aten.copy_.default"
"""Writes all of its first argument: what functionalised graphs end in."""

WRITING = frozenset({COPY_INTO, "aten.index_copy_.default", "aten.index_put_.default"})
"""The operators of graphs that write into their first argument and do nothing else; all but the first write some rows
of it, as a step of generation does in its cache."""


class OpTag(Enum):
    """Facts about an op that restrict where and when it may run."""

    RANDOM = "random"
    """Draws from torch's random stream; its order among random ops is fixed."""
    MUTATES = "mutates"
    """Writes into an input (``copy_`` into a buffer); ordered against every reader of that storage."""
    COLLECTIVE = "collective"
    """Talks to other processes; an ordered barrier."""
    HIGHER_ORDER = "higher_order"
    """Carries subgraphs (cond, while, flex attention); claimed whole or run by eager."""
    VIEW = "view"
    """Its output may alias its first input; moves no data in backends that have views."""
    STRIDE_SENSITIVE = "stride_sensitive"
    """Its meaning depends on the strides of its input (``as_strided``)."""
    DATA_DEPENDENT = "data_dependent"
    """The shape of its output depends on values (``nonzero``)."""
    MULTI_OUTPUT = "multi_output"
    """Returns several values; they are taken apart by ``getitem`` nodes, which stay with it."""
    UNINITIALIZED = "uninitialized"
    """Returns memory as it comes (``empty``): nothing to compare, so only a backend with eager's semantics runs it."""
    EFFECT = "effect"
    """Has another effect (assertion, print, profiler mark) and keeps its place among effects."""


CLAIMED_WHOLE = frozenset({OpTag.MUTATES, OpTag.HIGHER_ORDER})
"""Tags of ops that backends of every level are asked about as they are, if their traits say that they take them."""


class InputRole(Enum):
    """Where the value of a graph or region input comes from."""

    ACTIVATION = "activation"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    CONSTANT = "constant"
    """A tensor with a value that is known when the region's code is bound: lifted out of the traced code, or a weight
    in inference that is watched for changes. See ``CompiledRegion.bind``."""
    TANGENT = "tangent"
    SAVED = "saved"
    """Saved by the forward graph for this backward graph."""
    SYMBOL = "symbol"
    """A number (a symbolic size), not a tensor."""

    @property
    def is_weight(self) -> bool:
        """Whether it is the same tensor at every call unless the model is updated."""
        return self in (InputRole.PARAMETER, InputRole.BUFFER, InputRole.CONSTANT)


_WRONG_IN_MIXED_LAYOUTS = frozenset(
    {"aten.native_group_norm_backward.default", "aten.fractional_max_pool2d_backward.default"}
)
"""Eager's kernels for processors take it that a gradient, an image and places in it lie alike: else they are wrong."""


@dataclass(frozen=True, slots=True)
class OpNode:
    """One node of an op graph.

    Attributes:
        name: unique in its graph.
        op: full operator name: ``aten.addmm.default``, ``getitem``, ``higher_order.cond``, ``symbolic.mul``.
        arguments: (schema name, value), in schema order, defaults included; operators without a schema use
            ``arg0``, ``arg1``...
        outputs: one entry per output; a node of a symbolic value has one number.
        module: path of the module that ran it (``encoder.layer.0.attention``), ``""`` for the root or if unknown.
        module_class: class name of that module.
        source: the user's source line, ``file.py:12 in forward``, if known.
        tags: see ``OpTag``.
        bodies: of a higher-order op, what its subgraphs compute, see ``contracts.bodies``.
    """

    name: str
    op: str
    arguments: tuple[tuple[str, Argument], ...]
    outputs: tuple[ValueMeta, ...]
    module: str = ""
    module_class: str = ""
    source: str = ""
    tags: frozenset[OpTag] = frozenset()
    bodies: tuple[Body, ...] = ()

    @property
    def is_symbolic(self) -> bool:
        """Whether it computes only numbers: such nodes belong to no region, the stitched code computes them."""
        return not any(isinstance(meta, TensorMeta) for meta in self.outputs) and not self.tags

    @property
    def wants_traced_strides(self) -> bool:
        """Whether its result in eager depends on the strides of its inputs."""
        return OpTag.STRIDE_SENSITIVE in self.tags or self.op in _WRONG_IN_MIXED_LAYOUTS

    def references(self) -> tuple[str, ...]:
        """Names of the nodes that it reads values of, in argument order, repeats kept."""
        return tuple(ref.name for _, argument in self.arguments for ref in _references(argument))

    def aliased(self) -> str | None:
        """Name of the value that its result may share storage with, ``None`` if the result is its own."""
        shares = OpTag.VIEW in self.tags or OpTag.MUTATES in self.tags or self.op == "getitem"
        return next(iter(self.references()), None) if shares else None

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={format_argument(value)}" for name, value in self.arguments)
        outputs = ", ".join(str(meta) for meta in self.outputs)
        return f"%{self.name} = {self.op}({arguments}) -> {outputs}"


def _references(argument: Argument) -> list[NodeRef]:
    if isinstance(argument, NodeRef):
        return [argument]
    if isinstance(argument, tuple):
        return [ref for item in argument for ref in _references(item)]
    return []


def format_argument(argument: Argument) -> str:
    """Text of an argument, deterministic and free of addresses."""
    if isinstance(argument, tuple):
        return "[" + ", ".join(format_argument(item) for item in argument) + "]"
    if isinstance(argument, str):
        return repr(argument)
    return str(argument)


@dataclass(frozen=True, slots=True)
class InputView:
    """One tensor or number that an op reads.

    Attributes:
        name: the node or graph input it comes from.
        meta: what is known of it.
        role: where it comes from; results of other ops are ``ACTIVATION``, views of constants ``CONSTANT``.
    """

    name: str
    meta: ValueMeta
    role: InputRole

    @property
    def is_weight(self) -> bool:
        """Whether it is a parameter, buffer or lifted constant."""
        return self.role.is_weight


@dataclass(frozen=True, slots=True)
class OpView:
    """What a backend sees of an op when it is asked for a verdict. Immutable.

    Attributes:
        node: the op with its arguments and output metas.
        inputs: one entry per distinct value that it reads, in order of first use.
        phase: inference, forward or backward.
        op_class: coarse kind of work, see ``contracts.opclass``.
        deterministic: whether equal inputs must give bitwise equal results, every time; see ``OpGraph.deterministic``.
    """

    node: OpNode
    inputs: tuple[InputView, ...]
    phase: Phase
    op_class: str
    deterministic: bool = False

    @property
    def op(self) -> str:
        """Full operator name, for instance ``aten.gelu.default``."""
        return self.node.op

    @property
    def outputs(self) -> tuple[ValueMeta, ...]:
        """Metas of its outputs."""
        return self.node.outputs

    @property
    def output_tensors(self) -> tuple[TensorMeta, ...]:
        """Metas of those outputs that are tensors."""
        return tuple(meta for meta in self.node.outputs if isinstance(meta, TensorMeta))

    @property
    def input_tensors(self) -> tuple[TensorMeta, ...]:
        """Metas of those inputs that are tensors."""
        return tuple(view.meta for view in self.inputs if isinstance(view.meta, TensorMeta))

    def has_argument(self, name: str) -> bool:
        """Whether the schema has an argument of this name."""
        return any(key == name for key, _ in self.node.arguments)

    def argument(self, name: str) -> Argument:
        """The argument with this schema name, default included.

        Raises:
            KeyError: the schema has no such argument; the message lists those it has.
        """
        for key, value in self.node.arguments:
            if key == name:
                return value
        raise KeyError(f"{self.op} has no argument {name!r}; it has {[key for key, _ in self.node.arguments]}")

    def tensor(self, name: str) -> TensorMeta | None:
        """Meta of the tensor passed as this argument; ``None`` if the argument is not one tensor."""
        value = self.argument(name)
        if not isinstance(value, NodeRef):
            return None
        meta = next(view.meta for view in self.inputs if view.name == value.name)
        return meta if isinstance(meta, TensorMeta) else None

    def known(self, condition: Condition) -> Truth:
        """Whether a condition on a size always holds; never adds a guard."""
        return known(condition)


@dataclass(frozen=True, slots=True)
class Body:
    """A subgraph of a higher-order op, as far as its price is concerned.

    Attributes:
        views: its ops in their order, with what they read and make; empty where ``placed_s`` is known.
        runs: how often it runs in one call of the op.
        assumed: whether ``runs`` is a guess, since the values decide.
        one_of_several: whether it is one of the branches of which a call runs one.
        graph: name in reports of the graph that it is by itself; ``""`` where eager runs it op by op.
        placed_s: seconds of one run as that graph is placed; ``None`` if they are not known.
    """

    views: tuple[OpView, ...]
    runs: float
    assumed: bool = False
    one_of_several: bool = False
    graph: str = ""
    placed_s: float | None = None
