"""Exported: from a program of ``torch.export`` to a graph as torch.compile would hand it over, and its signature.

Place: first step of ``exporting``. Input: an ``ExportedProgram``. Output: ``ExportedGraph``: the graph's text, what it
takes and returns, and the tensors that are its weights.
Method: ops are taken apart as AOTAutograd does it; symbols become inputs of their own, as AOTAutograd has them; what
the program writes into buffers and arguments becomes ``copy_`` in the graph, as torch.compile keeps it in inference.
So the same planner, passes and updates in place are at work.
Invariants: the graph is described as it will be read, by the names that its text gives to symbols.
Non-goals: gradients, subgraphs of higher-order ops, objects of TorchBind: refused, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
import torch.fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind

from mixbackend.contracts import InputRole, PackageError, RegionTextError
from mixbackend.contracts.compiled_body import traced_layout
from mixbackend.contracts.describe_op import as_tuple
from mixbackend.contracts.torch_compat import (
    decomposed_as_compiled,
    forward_names,
    is_higher_order,
    shape_env_of,
    size_expression,
    symbol_facts,
    symbolic_number,
    tensor_checks,
)
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.traced import Traced, TracedText
from mixbackend.package.guards import guards_of_symbols
from mixbackend.package.signature import (
    FixedInput,
    Input,
    NumberInput,
    Output,
    Signature,
    Symbol,
    TensorInput,
    size_text,
)
from mixbackend.package.trees import tree_of

aten = torch.ops.aten
_SIZE = aten.sym_size.int
_WEIGHTS = {
    InputKind.PARAMETER: InputRole.PARAMETER,
    InputKind.BUFFER: InputRole.BUFFER,
    InputKind.CONSTANT_TENSOR: InputRole.BUFFER,
}
_WRITES = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)


@dataclass(frozen=True)
class ExportedGraph:
    """See the module's docstring.

    Attributes:
        text: of the graph; it takes weights, symbols, then the other tensors.
        signature: of the program.
        weights: tensors that the graph takes, by the model's names for them, in its order.
        written: names of those that it writes into.
    """

    text: TracedText
    signature: Signature
    weights: Mapping[str, torch.Tensor]
    written: frozenset[str]


def exported_graph(program: ExportedProgram) -> ExportedGraph:
    """See the module's docstring.

    Raises:
        PackageError: the program cannot be in a package; says why.
    """
    if not isinstance(program, ExportedProgram):
        raise PackageError(
            f"a package is made of programs of torch.export, not of a {type(program).__name__}",
            hint="torch.export.export(model, args, kwargs) makes one",
        )
    _refuse(program)
    try:
        functional = decomposed_as_compiled(program)
    except Exception as error:  # whatever torch says of a program that it cannot rewrite
        raise PackageError(
            f"torch cannot take the program apart: {type(error).__name__}: {str(error)[:500]}",
            hint="a buffer that is written and registered under two names is one cause: register it once",
        ) from error
    return _Conversion(functional, forward_names(program)).converted()


def _refuse(program: ExportedProgram) -> None:
    for spec in program.graph_signature.input_specs:
        if spec.kind not in (*_WEIGHTS, InputKind.USER_INPUT):
            raise PackageError(f"the program takes {spec.arg.name}, a {spec.kind.name}, which no package can hold")
    kinds = {spec.kind for spec in program.graph_signature.output_specs}
    if kinds - {OutputKind.USER_OUTPUT, *_WRITES}:
        names = ", ".join(sorted(kind.name for kind in kinds - {OutputKind.USER_OUTPUT, *_WRITES}))
        raise PackageError(f"the program returns {names}: packages hold programs of inference alone")
    for node in program.graph.nodes:
        if node.op == "call_function" and is_higher_order(node.target):
            raise PackageError(
                f"the program holds {node.target}, whose subgraphs have no text",
                hint="write conditions and loops as ops of tensors, or leave them outside of the exported program",
            )


@dataclass
class _Conversion:
    """Builds the graph.

    Attributes:
        program: in functional form.
        names: of the parameters of its forward.
    """

    program: ExportedProgram
    names: tuple[str, ...]
    graph: torch.fx.Graph = field(default_factory=torch.fx.Graph)
    new: dict[torch.fx.Node, torch.fx.Node] = field(default_factory=dict)
    roles: dict[str, PlaceholderRole] = field(default_factory=dict)
    symbols: dict[sympy.Symbol, torch.fx.Node] = field(default_factory=dict)

    def converted(self) -> ExportedGraph:
        for node in [*tensor_checks(self.program.graph)]:
            self.program.graph.erase_node(node)
        old = {node.name: node for node in self.program.graph.find_nodes(op="placeholder")}
        weights = self._weights(old)
        leaves = [
            (spec, old[spec.arg.name])
            for spec in self.program.graph_signature.input_specs
            if spec.kind is InputKind.USER_INPUT
        ]
        self._add_symbols([node for _, node in leaves])
        self._add_tensors([node for _, node in leaves])
        self._copy_ops()
        written = self._write(old)
        outputs = self._return()
        text = self._text()
        read = {node.name: node.meta["val"] for node in text.read().module.graph.find_nodes(op="placeholder")}
        renamed = {symbol: sympy.Symbol(f"s{place}", integer=True) for place, symbol in enumerate(self.symbols)}
        places = [self._input(spec, node, read, renamed, written) for spec, node in leaves]
        arguments, results = (
            tree_of(spec) for spec in (self.program.call_spec.in_spec, self.program.call_spec.out_spec)
        )
        signature = Signature(
            arguments=arguments,
            names=self.names,
            inputs=tuple(places),
            symbols=tuple(self._ranges(renamed)),
            guards=tuple(guards_of_symbols(self._shape_env(), renamed)) if self.symbols else (),
            results=results,
            outputs=tuple(outputs),
        )
        return ExportedGraph(text, signature, weights, frozenset(written & set(weights)))

    # --- the graph -------------------------------------------------------------------------------------------------

    def _weights(self, old: Mapping[str, torch.fx.Node]) -> dict[str, torch.Tensor]:
        """Placeholders of weights that something reads or writes."""
        found: dict[str, torch.Tensor] = {}
        written = {spec.target for spec in self.program.graph_signature.output_specs if spec.kind in _WRITES}
        for spec in self.program.graph_signature.input_specs:
            used = bool(old[spec.arg.name].users) or spec.target in written
            if spec.kind not in _WEIGHTS or not used:
                continue
            name = spec.target
            assert name is not None
            tensors = self.program.constants if name in self.program.constants else self.program.state_dict
            found[name] = _plain(tensors[name], name)
            node = self._placeholder(old[spec.arg.name].name, old[spec.arg.name].meta["val"])
            self.new[old[spec.arg.name]] = node
            self.roles[node.name] = PlaceholderRole(_WEIGHTS[spec.kind], name)
        return found

    def _add_symbols(self, leaves: list[torch.fx.Node]) -> None:
        """A placeholder for each symbol that the inputs show."""
        for value in (node.meta.get("val") for node in leaves):
            sizes = [*value.shape, *value.stride()] if isinstance(value, torch.Tensor) else [value]
            for size in sizes:
                if not isinstance(size, torch.SymInt):
                    continue
                for symbol in sorted(size_expression(size).free_symbols, key=str):
                    if symbol not in self.symbols:
                        number = symbolic_number(size.node.shape_env, symbol)
                        self.symbols[symbol] = node = self._placeholder(f"size_{symbol}", number)
                        self.roles[node.name] = PlaceholderRole(InputRole.SYMBOL)

    def _add_tensors(self, leaves: list[torch.fx.Node]) -> None:
        for node in leaves:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                self.new[node] = self._placeholder(node.name, value)
            elif isinstance(value, torch.SymInt):
                self.new[node] = self.symbols[size_expression(value)]  # type: ignore[index]
            elif node.users:
                raise PackageError(f"the program computes with its argument {node.name}, a {type(value).__name__}")

    def _placeholder(self, name: str, value: Any) -> torch.fx.Node:
        node = self.graph.placeholder(name)
        node.meta["val"] = value
        return node

    def _copy_ops(self) -> None:
        for node in self.program.graph.nodes:
            if node.op == "call_function":
                symbol = size_expression(node.meta["val"]) if node.target is _SIZE else None
                known = self.symbols.get(symbol) if isinstance(symbol, sympy.Symbol) else None
                self.new[node] = known or self.graph.node_copy(node, self.new.__getitem__)
            elif node.op == "get_attr":
                raise PackageError(f"the program holds {node.target}, which is neither a weight nor a constant tensor")

    def _write(self, old: Mapping[str, torch.fx.Node]) -> set[str]:
        """Write what is written; names of the weights and arguments."""
        written: set[str] = set()
        placeholders = {
            spec.target: old[spec.arg.name]
            for spec in self.program.graph_signature.input_specs
            if spec.target is not None
        }
        for spec, value in zip(self.program.graph_signature.output_specs, self._returned(), strict=True):
            if spec.kind not in _WRITES:
                continue
            assert spec.target is not None
            is_buffer = spec.kind is OutputKind.BUFFER_MUTATION
            target = self.new[placeholders[spec.target] if is_buffer else old[spec.target]]
            node = self.graph.call_function(aten.copy_.default, (target, self.new[value]))
            node.meta = {"val": target.meta["val"]}
            written.add(spec.target)
        return written

    def _return(self) -> Iterator[Output]:
        results: list[torch.fx.Node] = []
        outputs: list[Output] = []
        for spec, value in zip(self.program.graph_signature.output_specs, self._returned(), strict=True):
            if spec.kind in _WRITES:
                continue
            if isinstance(value, torch.fx.Node):
                outputs.append(Output(place=len(results)))
                results.append(self.new[value])
            else:
                outputs.append(Output(value=value))
        self.graph.output(tuple(results))
        return iter(outputs)

    def _returned(self) -> tuple[Any, ...]:
        (output,) = self.program.graph.find_nodes(op="output")
        return as_tuple(output.args[0])

    def _text(self) -> TracedText:
        traced = Traced(torch.fx.GraphModule(torch.nn.Module(), self.graph), "inference", self.roles, None)
        try:
            return traced.text()
        except RegionTextError as error:
            raise PackageError(f"the program has no text: {error.what}", where=error.where) from error

    # --- the signature ---------------------------------------------------------------------------------------------

    def _input(
        self,
        spec: Any,
        node: torch.fx.Node,
        read: Mapping[str, Any],
        renamed: Mapping[sympy.Symbol, sympy.Symbol],
        written: set[str],
    ) -> Input:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            return NumberInput(symbol=str(renamed[size_expression(value)]))  # type: ignore[index]
        if not isinstance(value, torch.Tensor):
            given = spec.arg.value if isinstance(spec.arg, ConstantArgument) else value
            if not isinstance(given, (bool, int, float, str, type(None))):
                raise PackageError(
                    f"the program takes {node.name}, a {type(given).__name__}: neither tensor nor number"
                )
            return FixedInput(value=given)
        described = read[self.new[node].name]
        return TensorInput(
            dtype=str(described.dtype).removeprefix("torch."),
            device=str(described.device),
            # By the names of here: those of the text are given anew where it is read.
            shape=tuple(size_text(size_expression(size).xreplace(dict(renamed))) for size in value.shape),
            strides=traced_layout(described),
            written=node.name in written,
        )

    def _ranges(self, renamed: Mapping[sympy.Symbol, sympy.Symbol]) -> Iterator[Symbol]:
        for symbol in self.symbols:
            facts = symbol_facts(self._shape_env(), symbol)
            lower, upper = facts.lower, facts.upper
            stated = self.program.range_constraints.get(symbol)
            if stated is not None:
                lower = max(lower if lower is not None else int(stated.lower), int(stated.lower))
                if isinstance(stated.upper, (int, sympy.Integer)):
                    upper = int(stated.upper) if upper is None else min(upper, int(stated.upper))
            yield Symbol(name=str(renamed[symbol]), lower=lower if lower is not None else 0, upper=upper)

    def _shape_env(self) -> Any:
        return shape_env_of(next(iter(self.symbols.values())).meta["val"])


def _plain(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """A weight, if it is of a kind that a file holds."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or tensor.layout is not torch.strided:
        raise PackageError(f"the weight {name} is a {type(tensor).__name__} of layout {tensor.layout}: no plain tensor")
    return tensor.detach()
