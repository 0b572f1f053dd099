"""Each of torch's private names behind ``contracts/torch_compat``, exercised for real: one test per public function.

Longer than the house limit on purpose: the last test asserts that this one file covers the whole package.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import inspect
import json
import logging
import operator
import os
import re
import subprocess
import sys
import threading
import types
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
import torch._inductor.config
from ranks_here import as_rank
from torch.fx.experimental.proxy_tensor import make_fx

from mixbackend.contracts import torch_compat as compat
from mixbackend.contracts.torch_compat import graph_trees
from mixbackend.contracts.torch_compat.compile_processes import CompileProcesses
from mixbackend.contracts.torch_compat.graph_trees import trees_of_thread

ADD = torch.ops.aten.add.Tensor


def traced(function: Callable[..., Any], *inputs: torch.Tensor) -> torch.fx.GraphModule:
    return make_fx(function, tracing_mode="symbolic")(*inputs)


def placeholders(graph_module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return list(graph_module.graph.find_nodes(op="placeholder"))


def symbolic_size(size: int = 5) -> torch.SymInt:
    """The first size of a traced tensor."""
    return placeholders(traced(lambda x: x + 1, torch.ones(size, 3)))[0].meta["val"].shape[0]


class Graphs:
    """What AOTAutograd hands to the compilers, kept by phase, with Dynamo's graph; runs everything as traced."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.by_phase: dict[str, torch.fx.GraphModule] = {}
        self.partitioned = 0
        torch._dynamo.reset()
        self.run = torch.compile(module, backend=self._compile)

    def _compile(self, graph_module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        self.dynamo = graph_module
        return compat.aot_compile(
            graph_module,
            inputs,
            forward=self._keep("forward"),
            backward=self._keep("backward"),
            inference=self._keep("inference"),
            partition=self._partition,
        )

    def _keep(self, phase: str) -> Callable[..., Any]:
        def compiler(graph_module: torch.fx.GraphModule, _: Any) -> Any:
            self.by_phase[phase] = graph_module
            return compat.boxed(lambda arguments: torch.fx.Interpreter(graph_module).boxed_run(arguments))

        return compiler

    def _partition(self, joint: torch.fx.GraphModule, inputs: Any, **keywords: Any) -> Any:
        self.partitioned += 1
        return compat.partition_with_min_cut(joint, inputs, **keywords)

    def ops(self, phase: str) -> set[str]:
        return {str(node.target) for node in self.by_phase[phase].graph.nodes if node.op == "call_function"}


@pytest.fixture(scope="module")
def training() -> Graphs:
    """A linear layer after a batch norm, captured in training with its backward."""
    graphs = Graphs(torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2), torch.nn.GELU()))
    graphs.run(torch.ones(4, 3)).sum().backward()
    return graphs


# --- operators -------------------------------------------------------------------------------------------------------


def test_is_operator() -> None:
    assert compat.is_operator(ADD)
    assert not compat.is_operator(torch.ops.aten.add)
    assert not compat.is_operator(operator.getitem)


def test_is_higher_order() -> None:
    assert compat.is_higher_order(torch.ops.higher_order.cond)
    assert not compat.is_higher_order(ADD)


def test_schema_arguments() -> None:
    assert compat.schema_arguments(ADD) == (
        compat.SchemaArgument("self", False, None, False),
        compat.SchemaArgument("other", False, None, False),
        compat.SchemaArgument("alpha", True, 1, True),
    )


def test_is_mutating() -> None:
    assert compat.is_mutating(torch.ops.aten.add_.Tensor)
    assert compat.is_mutating(torch.ops.aten.add.out)
    assert not compat.is_mutating(ADD)


def test_returns_nothing() -> None:
    assert compat.returns_nothing(torch.ops.aten._assert_async.default)
    assert not compat.returns_nothing(ADD)


def test_operator_by_name() -> None:
    assert compat.operator_by_name("aten.add.Tensor") is ADD
    missing = ["aten.add", "aten.add.NoSuchOverload", "aten.no_such_operator.default", "nowhere.add.Tensor", ""]
    assert [compat.operator_by_name(name) for name in missing] == [None] * len(missing)


def test_rerun_fake() -> None:
    value = placeholders(traced(lambda x: x.relu(), torch.ones(2, 3, 4, 5)))[0].meta["val"]
    shape_env = value.fake_mode.shape_env
    guards = list(shape_env.guards)
    again = compat.rerun_fake(torch.ops.aten.clone.default, (value,), {"memory_format": torch.channels_last})
    assert compat.is_fake(again)
    assert again.shape == value.shape
    assert again.stride()[1] == 1
    # Real tensors (lifted constants) may be among the arguments.
    assert compat.rerun_fake(ADD, (value, torch.ones(5)), {}).shape == value.shape
    with pytest.raises(ValueError, match="view"):
        compat.rerun_fake(torch.ops.aten.view.default, (again, [-1]), {})
    assert list(shape_env.guards) == guards


def test_run_eagerly() -> None:
    value = placeholders(traced(lambda x: x.relu(), torch.ones(2)))[0].meta["val"]
    one, weight = torch.ones(1, 1), torch.ones(1, 1, requires_grad=True)
    with value.fake_mode, torch.autocast("cpu", dtype=torch.bfloat16):
        made = compat.run_eagerly(torch.ops.aten.mm.default, (one, weight), {})
    assert not compat.is_fake(made) and not made.requires_grad
    assert made.dtype == torch.float32 and made.item() == 1.0


def test_eager_types() -> None:
    operator, arguments = torch.ops.aten.native_layer_norm.default, (torch.ones(2, 4).bfloat16(), [4], torch.ones(4))
    given = (*arguments, None, 1e-5)
    assert operator in compat.MISSTATED
    assert compat.eager_types(operator, given, {}) == dict(enumerate(item.dtype for item in operator(*given)))


def switches() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def test_graph_task() -> None:
    seen: list[int | None] = []
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda gradient: seen.append(compat.graph_task()))
    y.sum().backward()
    assert compat.graph_task() is None
    assert len(seen) == 1 and seen[0] is not None


def test_deterministic_asked() -> None:
    try:
        for wanted in (True, False):
            torch.use_deterministic_algorithms(wanted)
            assert compat.deterministic_asked() is wanted
    finally:
        torch.use_deterministic_algorithms(False)


def test_ask_deterministic() -> None:
    try:
        compat.ask_deterministic(True)
        assert switches() == (True, True)
    finally:
        torch.use_deterministic_algorithms(False)
    before = switches()
    compat.ask_deterministic(False)
    assert switches() == before, "inductor's keys hold whether torch would only warn"
    torch.use_deterministic_algorithms(True)
    compat.ask_deterministic(False)
    assert not compat.deterministic_asked()
    torch.use_deterministic_algorithms(False)


def test_inductor_choices() -> None:
    assert compat.inductor_choices() == {}
    with torch._inductor.config.patch({"freezing": True, "cpp.threads": 3}):
        assert compat.inductor_choices() == {"freezing": True, "cpp.threads": 3}


def test_set_inductor_choices() -> None:
    told = {"freezing": True, "cpp.threads": 3, "of another release": 1}
    program = f"""
compat.set_inductor_choices({told!r})
print(json.dumps(compat.inductor_choices()))
"""
    assert json.loads(_in_a_process(program)) == {"freezing": True, "cpp.threads": 3}


def test_kernel_switches(precision: Callable[[str], None]) -> None:
    precision("high")
    asked = compat.kernel_switches()
    assert (asked["float32_matmul_precision"], asked["cuda.matmul.fp32_precision"]) == ("high", "tf32")
    assert compat.rounds_products() and json.loads(json.dumps(asked)) == asked


ASKED = (
    "",
    "torch.set_float32_matmul_precision('medium')",
    "backends.cuda.matmul.allow_tf32 = True",
    "backends.cudnn.allow_tf32 = False",
    "backends.cudnn.benchmark = backends.cudnn.deterministic = True",
    "backends.mkldnn.enabled = False",
    "backends.cuda.matmul.allow_fp16_accumulation = True",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False",
    # Once these say what the older interface cannot, its getters raise.
    "backends.cuda.matmul.fp32_precision = 'tf32'",
    "backends.cudnn.conv.fp32_precision = 'ieee'",
    "backends.mkldnn.conv.fp32_precision = 'bf16'",
    "backends.mkldnn.fp32_precision = 'tf32'",
    "backends.fp32_precision = 'ieee'",
    "backends.fp32_precision = 'tf32'",
)


def test_set_kernel_switches() -> None:
    """In another process, however the user set them; what is as wanted is not touched, for torch tells that from the
    same value set."""
    program = f"""
import os

def in_a_fork(work):
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, json.dumps(work()).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        return json.loads(answer.read())

def tell(asked):
    exec(asked)
    return compat.kernel_switches()

def take(told):
    before = compat.kernel_switches()
    compat.set_kernel_switches(before)
    assert compat.kernel_switches() == before
    compat.set_kernel_switches(told)
    with compat.float32_products("ieee"):
        assert not compat.rounds_products()
    return [compat.kernel_switches(), compat.rounds_convolutions(), compat.processor_precision()]

told = [in_a_fork(lambda: tell(asked)) for asked in {ASKED!r}]
print(json.dumps([(one, in_a_fork(lambda: take(one))) for one in told]))
"""
    answers = json.loads(_in_a_process(program))
    assert len({json.dumps(told) for told, _ in answers}) > len(ASKED) - 3, "nearly all of them differ"
    for asked, (told, (taken, rounds, exact)) in zip(ASKED, answers, strict=True):
        assert taken == told, asked
        assert rounds == (told["cudnn.conv.fp32_precision"] == "tf32"), asked
        of_onednn = told["mkldnn.matmul.fp32_precision"], told["mkldnn.conv.fp32_precision"]
        assert exact == "/".join(of_onednn).replace("none", "ieee"), asked


def _in_a_process(program: str) -> str:
    imports = "import json", "import torch", "from torch import backends"
    lines = *imports, "from mixbackend.contracts import torch_compat as compat", program
    run = [sys.executable, "-c", "\n".join(lines)]
    return subprocess.run(run, check=True, timeout=120, stdout=subprocess.PIPE, text=True).stdout


def test_rounds_products(precision: Callable[[str], None]) -> None:
    for wanted, rounds in (("highest", False), ("high", True), ("medium", True)):
        precision(wanted)
        assert compat.rounds_products() is rounds


@pytest.mark.parametrize("allowed", [True, False])
def test_rounds_convolutions(allowed: bool) -> None:
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=allowed):
        assert compat.rounds_convolutions() is allowed


def test_float32_products(precision: Callable[[str], None]) -> None:
    for asked in ("highest", "high", "medium"):
        precision(asked)
        before = compat.kernel_switches()
        with compat.float32_products("ieee"):
            assert not compat.rounds_products() and compat.processor_precision() == "ieee/ieee"
        with compat.float32_products("tf32"):
            assert compat.rounds_products()
        assert compat.kernel_switches() == before


def test_processor_precision(precision: Callable[[str], None]) -> None:
    precision("highest")
    assert compat.processor_precision() == "ieee/ieee", "as it is where nothing was set"
    precision("medium")
    assert compat.processor_precision() == "bf16/ieee"


def test_switches_of_kernels_are_read_in_one_place() -> None:
    """The older getters raise where the user took the newer interface."""
    getters = re.compile(r"get_float32_matmul_precision|\.allow_tf32(?! = )")
    root = Path(compat.__file__).parents[2]
    readers = [
        str(file.relative_to(root))
        for folder in ("contracts", "partitioner", "backends", "mixbackend")
        for file in (root / folder).rglob("*.py")
        if file.stem != "kernel_switches" and getters.search(file.read_text())
    ]
    assert not readers


def test_warned_at_most() -> None:
    torch.use_deterministic_algorithms(False)
    put = functools.partial(torch.zeros(4).put, torch.tensor([0]), torch.ones(1))
    with compat.warned_at_most():
        assert switches() == (False, False)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="deterministic"):
            put()
        with warnings.catch_warnings(), compat.warned_at_most():
            warnings.simplefilter("error")
            assert switches() == (True, True)
        with compat.warned_at_most():
            assert put()[0] == 1
        assert switches() == (True, False)
    finally:
        torch.use_deterministic_algorithms(False)


def test_deterministic_without_a_word() -> None:
    torch.use_deterministic_algorithms(False)
    put = functools.partial(torch.zeros(4).put, torch.tensor([0]), torch.ones(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with compat.deterministic_without_a_word():
            assert put()[0] == 1 and switches() == (True, True)
            assert torch.empty(8).isnan().all()
    assert switches() == (False, False)


def test_restated() -> None:
    with compat.fresh_fake_mode():
        value = torch.empty(2, 3)
    assert compat.restated(value, {0: torch.float32}) is value
    assert compat.restated(value, {0: torch.bfloat16}).dtype is torch.bfloat16


def test_has_fast_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    for first, second in ((True, False), (False, True), (False, False)):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda answer=first: answer)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda answer=second: answer)
        assert compat.has_fast_bfloat16() is (first or second)


def test_operator_database(monkeypatch: pytest.MonkeyPatch) -> None:
    by_name = {item.name: item for item in compat.operator_database()}
    stacks: list[Any] = []
    monkeypatch.setattr(inspect, "stack", lambda *given: stacks.append(given) or [])
    samples = list(by_name["nn.functional.gelu"].sample_inputs("cpu", torch.float32))
    assert len(by_name) > 500
    assert all(isinstance(sample.input, torch.Tensor) for sample in samples)
    assert not stacks, "no sample looks through the stack"


# --- symbolic sizes --------------------------------------------------------------------------------------------------


def test_symbolic_expression() -> None:
    size = symbolic_size()
    (symbol,) = compat.symbolic_expression(size).free_symbols
    assert compat.symbolic_expression(2 * size + 1) == 2 * symbol + 1


def test_size_expression() -> None:
    size = symbolic_size()
    assert compat.size_expression(size) == compat.symbolic_expression(size)
    assert compat.size_expression(3) == 3 and compat.size_expression(3).is_Integer


def test_symbolic_hint() -> None:
    size = symbolic_size(5)
    assert compat.symbolic_hint(2 * size) == 10
    unbacked = compat.shape_env_of(size).create_unbacked_symint()
    assert compat.symbolic_hint(unbacked) is None
    assert not compat.shape_env_of(size).guards


def test_symbolic_bounds() -> None:
    size = symbolic_size(5)
    lower, upper = compat.symbolic_bounds(size)
    assert 0 <= lower <= 2
    assert upper is None
    limited = compat.fresh_symbol(compat.fresh_fake_mode(), "limited", 5, 3, 9)
    assert compat.symbolic_bounds(2 * limited) == (6, 18)
    assert not compat.shape_env_of(size).guards


def test_fresh_symbol() -> None:
    mode = compat.fresh_fake_mode()
    first, second = (compat.fresh_symbol(mode, name, 4, 0, None) for name in ("first", "second"))
    assert compat.symbolic_expression(first) != compat.symbolic_expression(second)
    assert compat.symbolic_hint(first) == 4
    assert compat.symbolic_bounds(first) == (0, None)


def test_symbolic_integer() -> None:
    mode = compat.fresh_fake_mode()
    symbol = compat.symbolic_expression(compat.fresh_symbol(mode, "size", 4, 2, None))
    value = compat.symbolic_integer(mode, 3 * symbol, 12)
    assert isinstance(value, torch.SymInt)
    assert (compat.symbolic_expression(value), compat.symbolic_hint(value)) == (3 * symbol, 12)


def test_assumptions() -> None:
    mode = compat.fresh_fake_mode()
    size = compat.fresh_symbol(mode, "size", 8, 2, 64)
    symbol = compat.symbolic_expression(size)
    assert size % 4 == 0
    assert size > 1
    (assumed,) = compat.assumptions(mode, {symbol: (2, 64)})
    assert assumed.subs(symbol, 12) == sympy.true
    assert assumed.subs(symbol, 13) == sympy.false


def test_symbolic_functions() -> None:
    functions = compat.symbolic_functions()
    assert {"FloorDiv", "Mod", "Max", "Min", "PythonMod", "CleanDiv", "ModularIndexing"} <= set(functions)
    assert functions["FloorDiv"](sympy.Integer(7), sympy.Integer(2)) == 3


FACTS = [
    compat.SymbolFacts("size", 2, None, 6),
    compat.SymbolFacts("size", 1, 512, 1),
    compat.SymbolFacts("size", 4, 4096, None),
    compat.SymbolFacts("integer", None, None, -3),
    compat.SymbolFacts("integer", 0, 9, 0),
    compat.SymbolFacts("unbacked", 0, None, None),
]


@pytest.mark.parametrize("facts", FACTS)
def test_symbol_facts(facts: compat.SymbolFacts) -> None:
    shape_env = compat.fresh_fake_mode().shape_env
    found = compat.symbol_facts(shape_env, compat.declare_symbol(shape_env, "s0", facts))
    assert (found.kind, found.lower, found.upper) == (facts.kind, facts.lower, facts.upper)
    assert facts.hint is None or found.hint == facts.hint


def test_declare_symbol() -> None:
    shape_env = compat.fresh_fake_mode().shape_env
    facts = compat.SymbolFacts("size", 2, None, 6)
    first, second = (compat.declare_symbol(shape_env, name, facts) for name in ("s0", "s1"))
    assert first != second
    assert not shape_env.guards


def test_symbolic_number() -> None:
    shape_env = compat.fresh_fake_mode().shape_env
    symbol = compat.declare_symbol(shape_env, "s0", compat.SymbolFacts("size", 2, None, 6))
    number = compat.symbolic_number(shape_env, 2 * symbol + 1)
    assert isinstance(number, torch.SymInt)
    assert compat.symbolic_expression(number) == 2 * symbol + 1
    assert compat.symbolic_hint(number) == 13
    assert compat.symbolic_number(shape_env, sympy.Integer(5)) == 5
    assert not shape_env.guards


# --- fake tensors and modes ------------------------------------------------------------------------------------------


def test_fresh_fake_mode() -> None:
    real = torch.ones(2, 3)
    with compat.fresh_fake_mode():
        result = torch.empty(4, 2) @ real
    assert compat.is_fake(result)
    assert result.shape == (4, 3)


def test_fake_tensor() -> None:
    size = symbolic_size()
    mode = size.node.shape_env
    fake_mode = torch._subclasses.FakeTensorMode(shape_env=mode)
    made = compat.fake_tensor(fake_mode, [size, 3], [3, 1], torch.float16, torch.device("cpu"))
    assert compat.is_fake(made) and made.device == torch.device("cpu") and made.dtype == torch.float16
    with fake_mode:
        assert (made * 2).shape == (size, 3)
    assert made.fake_mode is fake_mode


def test_is_fake() -> None:
    with compat.fresh_fake_mode():
        fake = torch.empty(2)
    assert compat.is_fake(fake)
    assert not compat.is_fake(torch.empty(2))
    assert not compat.is_fake(3)


def test_shape_env_of() -> None:
    mode = compat.fresh_fake_mode()
    with mode:
        fake = torch.empty(2)
    assert compat.shape_env_of(fake) is mode.shape_env
    assert compat.shape_env_of(compat.fresh_symbol(mode, "size", 4, 2, None)) is mode.shape_env
    assert compat.shape_env_of(torch.empty(2)) is None
    assert compat.shape_env_of(3) is None


def test_profiler_is_on() -> None:
    seen: list[bool] = []

    class Asking(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
            seen.append(compat.profiler_is_on())
            return value * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            seen.append(compat.profiler_is_on())
            return gradient * 2

    value = torch.ones(2, requires_grad=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        Asking.apply(value).sum().backward()
    Asking.apply(value).sum().backward()
    assert seen == [True, True, False, False]


class KeptRecords(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def test_log_code(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, made = KeptRecords(), []
    monkeypatch.setattr(logging.getLogger("torch"), "handlers", [kept])
    compat.log_code(lambda: made.append("code") or "code")
    assert made == [] and kept.records == []
    torch._logging.set_logs(output_code=True)
    monkeypatch.setattr(logging.getLogger("torch"), "handlers", [kept])
    compat.log_code(lambda: "code")
    torch._logging.set_logs()
    assert [record.getMessage() for record in kept.records] == ["code"]


def test_trace_artifact(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, log = KeptRecords(), logging.getLogger("torch.__trace")
    monkeypatch.setattr(log, "handlers", [])
    compat.trace_artifact("plan", "string", lambda: pytest.fail("nobody listens"))
    monkeypatch.setattr(log, "handlers", [kept])
    compat.trace_artifact("plan", "string", lambda: "text")
    (record,) = kept.records
    assert record.metadata["artifact"] == {"name": "plan", "encoding": "string"}  # type: ignore[attr-defined]
    assert record.payload == "text"  # type: ignore[attr-defined]
    compat.trace_artifact("plan", "string", lambda: str(1 // 0))
    assert "ZeroDivisionError" in kept.records[-1].payload  # type: ignore[attr-defined]


def test_dynamo_backend() -> None:
    graph_module = torch.fx.symbolic_trace(lambda x: (x + 1,))
    run = compat.dynamo_backend("eager")(graph_module, [torch.ones(2)])
    torch.testing.assert_close(run(torch.ones(2)), (torch.full((2,), 2.0),))


def test_dynamo_backend_names() -> None:
    assert {"aot_eager", "inductor", "mixbackend", "tvm"} <= set(compat.dynamo_backend_names())


def test_is_dynamos_own() -> None:
    assert compat.is_dynamos_own(compat.dynamo_backend("aot_ts"))
    assert not compat.is_dynamos_own(lambda graph_module, inputs: graph_module)


def test_without_dispatch_modes() -> None:
    with compat.fresh_fake_mode():
        with compat.without_dispatch_modes():
            inside = torch.ones(2)
        assert compat.is_fake(torch.ones(2))
    assert inside.tolist() == [1, 1]


def test_results_replaced() -> None:
    value = torch.ones(3, requires_grad=True)
    with compat.results_replaced(lambda tensor: tensor + 1):
        result = (value * 2).view(3)
        result.sum().backward()
    assert result.tolist() == [3.0, 3.0, 3.0], "the product is replaced, its view is not"
    assert value.grad.tolist() == [5.0, 5.0, 5.0], "so are those of the backward: 1 + 1, then twice that + 1"


def test_tracing_apart() -> None:
    outer, inner = compat.fresh_fake_mode(), compat.fresh_fake_mode()
    with outer, compat.tracing_apart(inner):
        assert not compat.is_fake(torch.ones(2))
        assert torch._guards.detect_fake_mode() is inner
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()


def test_outside_compilation() -> None:
    mode = compat.fresh_fake_mode()
    with torch._guards.tracing(torch._guards.TracingContext(mode)), mode, compat.outside_compilation():
        value = torch.ones(3, 4)
        graph_module = make_fx(lambda x: x * 2, tracing_mode="fake")(value)
        assert torch._guards.TracingContext.try_get() is None
    assert not compat.is_fake(value)
    (source,) = placeholders(graph_module)
    assert source.meta["val"].fake_mode is not mode
    assert all(isinstance(size, int) for size in source.meta["val"].shape)


def test_storage_key() -> None:
    real = torch.ones(4, 4)
    with compat.fresh_fake_mode():
        fake, other = torch.empty(4, 4), torch.empty(4, 4)
        assert compat.storage_key(fake.t()[1:]) == compat.storage_key(fake) != compat.storage_key(other)
    assert compat.storage_key(real.view(16)) == compat.storage_key(real) != compat.storage_key(real.clone())


# --- decomposition and inductor --------------------------------------------------------------------------------------


def test_decomposition_table() -> None:
    layer_norm = torch.ops.aten.native_layer_norm.default
    tables = {level: compat.decomposition_table(level) for level in ("none", "core_aten", "prims", "inductor")}
    assert tables["none"] == {}
    assert torch.ops.aten.addcmul.default in tables["core_aten"]
    assert layer_norm not in tables["core_aten"]
    assert layer_norm in tables["prims"]
    assert layer_norm in tables["inductor"]
    hardswish = torch.ops.aten.hardswish.default
    decomposed = make_fx(lambda x: hardswish(x), decomposition_table=tables["core_aten"])(torch.ones(3))
    assert hardswish not in {node.target for node in decomposed.graph.nodes}
    with pytest.raises(ValueError, match="'half' is not a decomposition level"):
        compat.decomposition_table("half")


def test_pure_operators() -> None:
    aten, found = torch.ops.aten, set(compat.pure_operators())
    assert {ADD, aten.native_layer_norm.default} <= found
    assert not {aten.add_.Tensor, aten.add.out} & found


def test_inductor_decomposes_as_usual() -> None:
    with torch._inductor.config.patch(fallback_random=False, fallback_embedding_bag_byte_unpack=False):
        assert compat.inductor_decomposes_as_usual()
        with torch._inductor.config.patch(fallback_random=True):
            assert not compat.inductor_decomposes_as_usual()


def test_inductor_measures() -> None:
    with torch._inductor.config.patch(max_autotune=False, max_autotune_gemm=False, max_autotune_pointwise=False):
        assert not compat.inductor_measures()
        with torch._inductor.config.patch(max_autotune_gemm=True):
            assert compat.inductor_measures()


def test_inductor_handling() -> None:
    aten = torch.ops.aten
    assert compat.inductor_handling(ADD) == "lowered"
    assert compat.inductor_handling(aten.native_layer_norm.default) == "decomposed"
    assert compat.inductor_handling(aten.reshape.default) in ("lowered", "decomposed")
    assert compat.inductor_handling(aten._linalg_det.default) == "fallback"
    assert compat.inductor_handling(aten._nested_tensor_from_mask.default) == "none"


def test_composite_implicit() -> None:
    assert compat.composite_implicit(torch.ops.aten.reshape.default)
    assert not compat.composite_implicit(torch.ops.aten.mm.default)


def by_inductor(function: Callable[..., Any], shapes: list[tuple[Any, ...]], exact: list[int], mode: Any = None) -> Any:
    mode = mode or compat.fresh_fake_mode()
    with compat.tracing_apart(mode), mode:
        inputs = [torch.empty(shape) for shape in shapes]
        graph_module = make_fx(function, decomposition_table=compat.decomposition_table("inductor"))(*inputs)
    with compat.tracing_apart(mode):
        return compat.inductor_compile(graph_module, inputs, mode, exact, "inference")


def compiled_by_inductor(exact: list[int]) -> Any:
    mode = compat.fresh_fake_mode()
    size = compat.fresh_symbol(mode, "rows", 6, 2, None)

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
        return torch.ops.aten.relu.default(x + y).t(), size * 2

    return by_inductor(function, [(size, 4), (4,)], exact, mode)


def test_inductor_compile() -> None:
    compiled = compiled_by_inductor([0])
    for rows in (6, 3):
        x, y = torch.randn(rows, 4), torch.randn(4)
        arguments = [x, y]
        result, double = compiled(arguments)
        torch.testing.assert_close(result, torch.relu(x + y).t())
        assert result.stride() == (1, 4)
        assert double == 2 * rows
        assert arguments == []


def test_exact_outputs_of_inductor_hold_for_a_graph_that_was_compiled_without_before() -> None:
    def compiled(exact: list[int]) -> Any:
        shapes = [(1, 16, 12, 12), (16, 16, 3, 3)]
        return by_inductor(lambda x, w: (torch.nn.functional.conv2d(x, w, padding=1),), shapes, exact)

    def strides(exact: list[int]) -> tuple[int, ...]:
        with torch.no_grad():
            return compiled(exact)([torch.randn(1, 16, 12, 12), torch.randn(16, 16, 3, 3)])[0].stride()

    assert strides([]) == (2304, 1, 192, 16), "inductor likes its images channels-last"
    assert strides([0]) == (2304, 144, 12, 1)


def test_kernels_later() -> None:
    with compat.kernels_later() as late:
        compiled = compiled_by_inductor([0])
    late.finish()
    assert not late.pending
    x, y = torch.randn(6, 4), torch.randn(4)
    torch.testing.assert_close(compiled([x, y])[0], torch.relu(x + y).t())


def test_inductor_source() -> None:
    assert "def call" in compat.inductor_source(compiled_by_inductor([0]))
    assert compat.inductor_source(len) == ""


def of_known_sizes(exact: list[int]) -> Any:
    return by_inductor(lambda x, y: (torch.ops.aten.relu.default(x - y).t(),), [(6, 4), (4,)], exact)


def test_inductor_entry() -> None:
    compiled = of_known_sizes([0])
    entry = compat.inductor_entry(compiled)
    assert entry is not None and entry == compat.inductor_entry(of_known_sizes([0]))
    assert entry != compat.inductor_entry(of_known_sizes([])), "strides were promised"
    with torch._inductor.config.patch({"triton.cudagraphs": True}):
        assert compat.inductor_entry(compiled) is None
    with torch._inductor.config.patch(force_disable_caches=True):
        assert compat.inductor_entry(of_known_sizes([0])) is None
    assert compat.inductor_entry(len) is None


def test_inductor_load() -> None:
    entry = compat.inductor_entry(of_known_sizes([0]))
    assert entry is not None
    mode = compat.fresh_fake_mode()
    with compat.tracing_apart(mode):
        loaded = compat.inductor_load(entry, mode, [0], "inference")
        with pytest.raises(FileNotFoundError, match="no entry"):
            compat.inductor_load("f" + "a" * 51, mode, [0], "inference")
    assert compat.inductor_entry(loaded) == entry
    assert "def call" in compat.inductor_source(loaded)
    x, y = torch.randn(6, 4), torch.randn(4)
    arguments = [x, y]
    torch.testing.assert_close(loaded(arguments)[0], torch.relu(x - y).t())
    assert arguments == []


def test_inductor_surroundings() -> None:
    mode = compat.fresh_fake_mode()
    with compat.tracing_apart(mode):
        before = compat.inductor_surroundings(mode, [0])
        assert before is not None and compat.inductor_surroundings(mode, [0]) == before
        assert compat.inductor_surroundings(mode, []) != before
        with torch._inductor.config.patch(epilogue_fusion=not torch._inductor.config.epilogue_fusion):
            assert compat.inductor_surroundings(mode, [0]) != before
        with torch._inductor.config.patch(fx_graph_cache=False):
            assert compat.inductor_surroundings(mode, [0]) is None
        threads = torch.get_num_threads()
        try:
            torch.set_num_threads(threads + 1)
            several = compat.inductor_surroundings(mode, [0])
        finally:
            torch.set_num_threads(threads)
        assert several != before


def test_inductor_settings() -> None:
    before = compat.inductor_settings()
    assert compat.inductor_settings() == before
    with torch._inductor.config.patch(epilogue_fusion=not torch._inductor.config.epilogue_fusion):
        assert compat.inductor_settings() != before


# --- capture ---------------------------------------------------------------------------------------------------------


def step_of_two(last: list[str]) -> bool:
    """Whether all is well: it is, where the second of two steps is left out."""
    if not compat.bisecting():
        return True
    last[:] = [name for name in ("first", "second") if not compat.bisected_away("steps", lambda name=name: name)]
    return "second" not in last


def test_know_saved_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.compiler._cache import CacheArtifactFactory, CacheArtifactManager

    monkeypatch.setattr(CacheArtifactFactory, "_artifact_types", dict(CacheArtifactFactory._artifact_types))
    taken: list[tuple[str, bytes]] = []
    compat.know_saved_caches("of_a_test", lambda key, content: taken.append((key, content)))
    compat.know_saved_caches("of_a_test", lambda key, content: taken.clear())
    with CacheArtifactManager.with_fresh_cache():
        compat.add_to_saved_caches("of_a_test", "one", lambda: b"1")
        saved = torch.compiler.save_cache_artifacts()
    assert saved is not None and saved[1].artifacts == {"of_a_test": ["one"]}
    torch.compiler.load_cache_artifacts(saved[0])
    assert taken == [("one", b"1")]


def test_add_to_saved_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.compiler._cache import CacheArtifactFactory, CacheArtifactManager

    monkeypatch.setattr(CacheArtifactFactory, "_artifact_types", dict(CacheArtifactFactory._artifact_types))
    compat.know_saved_caches("of_a_test", lambda key, content: None)
    asked: list[str] = []

    def content(key: str) -> bytes:
        asked.append(key)
        return key.encode()

    with CacheArtifactManager.with_fresh_cache():
        for key in ("one", "two", "one"):
            compat.add_to_saved_caches("of_a_test", key, lambda key=key: content(key))  # type: ignore[misc]
        assert asked == []
        saved = torch.compiler.save_cache_artifacts()
    assert saved is not None and asked == ["one", "two"] and b"two" in saved[0]


def test_join_bisection(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import compiler_bisector

    monkeypatch.setattr(compiler_bisector, "BACKENDS", {"inductor": []})
    compat.join_bisection(("steps",))
    compat.join_bisection(("others",))
    assert [step.name for step in compiler_bisector.BACKENDS["mixbackend"]] == ["steps"]


def test_bisected_away(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import compiler_bisector

    monkeypatch.setattr(compiler_bisector, "BACKENDS", {"inductor": [compiler_bisector.Subsystem("")]})
    compat.join_bisection(("steps",))
    assert not compat.bisected_away("steps", lambda: "told without a bisection")
    kept: list[str] = []
    found = compiler_bisector.CompilerBisector.do_bisect(lambda: step_of_two(kept))
    assert found is not None and (found.bisect_number, found.debug_info) == (1, "second")


def test_bisecting() -> None:
    assert not compat.bisecting()


def test_bisected(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import compiler_bisector

    nothing: list[object] = []
    monkeypatch.setattr(
        compiler_bisector, "BACKENDS", {"inductor": [compiler_bisector.Subsystem("")], "mixbackend": nothing}
    )
    tried: list[str] = []

    def succeeds(variables: Mapping[str, str]) -> bool:
        tried.append(variables["TORCH_COMPILE_BACKEND"])
        assert "mixbackend-bisect-" in variables["TORCHINDUCTOR_CACHE_DIR"]
        return tried[-1] == "inductor"

    assert compat.bisected(succeeds) == compat.Bisected("mixbackend", "", 0, "")
    assert tried == ["inductor", "mixbackend"]
    assert compat.bisected(lambda variables: True) is None


def test_tell_of_compilations() -> None:
    told: list[str] = []

    def begins() -> None:
        told.append("begins")

    def ends() -> None:
        told.append("ends")

    for _ in range(3):
        compat.tell_of_compilations(begins, ends)
    torch.compile(lambda value: value + 3.0, backend="eager")(torch.ones(3))
    torch._dynamo.reset()
    assert told == ["begins", "ends"]


def test_aot_compile(training: Graphs) -> None:
    assert set(training.by_phase) == {"forward", "backward"}
    assert training.partitioned == 1
    # Least decomposed: what backends look for arrives whole.
    assert {"aten.native_batch_norm.default", "aten._native_batch_norm_legit_functional.default"} & training.ops(
        "forward"
    )
    assert {"aten.addmm.default", "aten.gelu.default"} <= training.ops("forward")
    assert "aten.gelu_backward.default" in training.ops("backward")


def test_aot_compile_of_inference() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Softmax(dim=-1))
    graphs, x = Graphs(module), torch.randn(4, 3)
    with torch.no_grad():
        torch.testing.assert_close(graphs.run(x), module(x))
    assert set(graphs.by_phase) == {"inference"}
    assert "aten._softmax.default" in graphs.ops("inference")


def test_aot_compile_leaves_mutation_of_inputs_in_the_graph() -> None:
    class Counter(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.add_(1)
            return x * 2

    graphs, x = Graphs(Counter()), torch.zeros(3)
    with torch.no_grad():
        assert graphs.run(x).tolist() == [2, 2, 2]
    assert x.tolist() == [1, 1, 1]
    assert "aten.copy_.default" in graphs.ops("inference")


def test_settings_as_asked() -> None:
    import torch._functorch.config as functorch_config

    def settings() -> tuple[str, bool]:
        return torch.compiler.config.cache_key_tag, functorch_config.bundled_autograd_cache

    before = settings()
    with compat.settings_as_asked():
        assert settings() == before
    with compat.StoredResults(object, " of a compiler").sought():
        assert settings() == (f"{before[0]} of a compiler", True)
        with compat.settings_as_asked():
            assert settings() == before
    assert settings() == before


def test_no_result_to_store() -> None:
    from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache

    assert isinstance(compat.no_result_to_store("no text"), BypassAOTAutogradCache)


def test_kept_until_stored() -> None:
    import torch._functorch.config as functorch_config

    kept = compat.KeptUntilStored()
    kept.begin()
    assert functorch_config.bundled_autograd_cache
    for _ in range(2):
        kept.end()
        assert not functorch_config.bundled_autograd_cache


def test_boxed() -> None:
    from torch._functorch._aot_autograd.utils import call_func_at_runtime_with_args

    def halve(arguments: list[torch.Tensor]) -> list[torch.Tensor]:
        return [arguments.pop() / 2]

    assert compat.boxed(halve) is halve
    (result,) = call_func_at_runtime_with_args(halve, [torch.ones(2)])
    assert result.tolist() == [0.5, 0.5]


def test_input_position(training: Graphs) -> None:
    count = len(placeholders(training.dynamo))
    forward = [compat.input_position(node) for node in placeholders(training.by_phase["forward"])]
    backward = placeholders(training.by_phase["backward"])
    assert sorted(position for position in forward if position is not None) == list(range(count))
    assert compat.input_position(next(node for node in backward if compat.is_tangent(node))) is None


def of_two(value: torch.Tensor) -> torch.Tensor:
    from torch.testing._internal.two_tensor import TwoTensor

    return TwoTensor(value, value + 1)


def test_input_part() -> None:
    module = torch.nn.Linear(3, 2)
    module.weight = torch.nn.Parameter(of_two(of_two(torch.ones(2, 3))), requires_grad=False)
    graphs = Graphs(module)
    with torch.no_grad():
        graphs.run(torch.ones(4, 3))
    found = [
        (compat.input_position(node), compat.input_part(node)) for node in placeholders(graphs.by_phase["inference"])
    ]
    sources = [compat.source_name(node) for node in placeholders(graphs.dynamo)]
    assert all(place is not None for place, _ in found)
    parts = [part for place, part in found if place is not None and "'weight'" in sources[place]]
    assert parts == [".a.a", ".a.b", ".b.a", ".b.b"]
    assert [part for place, part in found if place is not None and "'weight'" not in sources[place]] == ["", ""]


def test_tensor_parts() -> None:
    plain = torch.ones(2)
    assert [part is plain for part in compat.tensor_parts(plain)] == [True]
    assert [part.tolist() for part in compat.tensor_parts(of_two(of_two(plain)))] == [[1, 1], [2, 2], [2, 2], [3, 3]]


def test_is_tangent(training: Graphs) -> None:
    (tangent,) = [node for node in placeholders(training.by_phase["backward"]) if compat.is_tangent(node)]
    assert tangent.meta["val"].shape == (4, 2)
    assert not any(compat.is_tangent(node) for node in placeholders(training.by_phase["forward"]))


def test_source_name(training: Graphs) -> None:
    names = [compat.source_name(node) for node in placeholders(training.dynamo)]
    assert sum("_parameters['weight']" in name for name in names) == 2
    assert sum("_buffers['running_mean']" in name for name in names) == 1
    assert sum("_parameters" not in name and "_buffers" not in name for name in names) == 1
    assert all(name.startswith("L['") for name in names)
    assert compat.source_name(torch.fx.Graph().placeholder("free")) == ""


def test_is_static_input(training: Graphs) -> None:
    static = {compat.source_name(node): compat.is_static_input(node) for node in placeholders(training.dynamo)}
    assert static == {name: "_parameters[" in name or "_buffers[" in name for name in static}
    assert set(static.values()) == {True, False}


def test_walk_metadata(training: Graphs) -> None:
    def modules(phase: str, op: str) -> list[tuple[str, Any]]:
        node = next(node for node in training.by_phase[phase].graph.nodes if str(node.target) == op)
        return list(compat.walk_metadata(node))

    for phase, op in (("forward", "aten.gelu.default"), ("backward", "aten.gelu_backward.default")):
        path, module_class = modules(phase, op)[-1]
        assert "2" in path
        assert "GELU" in str(module_class)
    assert list(compat.walk_metadata(torch.fx.Graph().placeholder("free"))) == []


def test_partition_with_min_cut(training: Graphs) -> None:
    # What is cheap is computed again: the backward gets gelu's input, not its derivative, and the tangent.
    saved = [node for node in placeholders(training.by_phase["backward"]) if not compat.is_tangent(node)]
    outputs = next(iter(training.by_phase["forward"].graph.find_nodes(op="output"))).args[0]
    assert 0 < len(saved) < len(outputs)


def test_backward_compiled_at_once() -> None:
    phases = []
    for context in (compat.backward_compiled_at_once(), torch.enable_grad()):
        graphs = Graphs(torch.nn.Linear(3, 2))
        with context:
            graphs.run(torch.ones(4, 3))
        phases.append(set(graphs.by_phase))
    assert phases == [{"forward", "backward"}, {"forward"}]


# --- native accessors ------------------------------------------------------------------------------------------------


def test_native_tensor_accessors() -> None:
    accessors = compat.native_tensor_accessors()
    assert accessors is not None, "this torch exports both"
    data_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(accessors[0])
    version = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(accessors[1])
    value = torch.randn(3)
    assert data_pointer(value) == value.data_ptr()
    held = ctypes.c_void_p(compat.tensor_implementation(value))
    before = version(ctypes.addressof(held))
    value.add_(1)
    assert version(ctypes.addressof(held)) == before + 1 == value._version


def test_tensor_implementation() -> None:
    value = torch.randn(3)
    assert compat.tensor_implementation(value) == compat.tensor_implementation(value) != 0
    assert compat.tensor_implementation(value.detach()) != compat.tensor_implementation(value)


def test_storage_users() -> None:
    value = torch.randn(3)
    assert compat.storage_users(value) == 1
    alias = value[1:]
    assert compat.storage_users(value) == compat.storage_users(alias) == 2
    del alias
    assert compat.storage_users(value) == 1


def test_is_sole_holder() -> None:
    value = torch.randn(3)
    assert all(compat.is_sole_holder(value) for _ in range(2)), "asking leaves nothing behind"
    for hold in (torch.Tensor.detach, torch.Tensor.untyped_storage, torch.Tensor.numpy):
        holder = hold(value)
        assert not compat.is_sole_holder(value)
        del holder
        assert compat.is_sole_holder(value)
    value.share_memory_()
    assert not compat.is_sole_holder(value), "another process may"


# --- whole -----------------------------------------------------------------------------------------------------------


def test_outputs_of_inductor_keep_their_strides_when_passes_give_them_gaps(monkeypatch):
    from torch._inductor.fx_passes import joint_graph

    def padded(graph_module):
        """As products are padded for GPUs: the result is a part of a larger one."""
        (output,) = graph_module.graph.find_nodes(op="output")
        (result,) = output.args[0]
        with graph_module.graph.inserting_before(output):
            larger = graph_module.graph.call_function(torch.ops.aten.constant_pad_nd.default, (result, [0, 3], 0.0))
            part = graph_module.graph.call_function(torch.ops.aten.slice.Tensor, (larger, 1, 0, 5))
        output.args = ((part,),)
        graph_module.recompile()
        return graph_module

    monkeypatch.setattr(joint_graph, "joint_graph_passes", padded)
    mode = compat.fresh_fake_mode()
    with mode:
        fake = torch.empty(4, 5)
    graph_module = make_fx(lambda value: (torch.relu(value),), tracing_mode="real", _allow_non_fake_inputs=True)(fake)
    with compat.tracing_apart(mode):
        compiled = compat.inductor_compile(graph_module, [fake], mode, [0], "inference")
    value = torch.randn(4, 5)
    (result,) = compiled([value])
    assert result.stride() == (5, 1)
    torch.testing.assert_close(result, value.relu())


def test_cuda_graph_recorded(monkeypatch):
    from torch._inductor import cudagraph_trees

    asked = {}
    signature = inspect.signature(cudagraph_trees.cudagraphify)

    def stand_in(*arguments, **keywords):
        asked.update(signature.bind(*arguments, **keywords).arguments)
        return arguments[0], ["result"]

    monkeypatch.setattr(cudagraph_trees, "cudagraphify", stand_in)
    run = compat.cuda_graph_recorded(lambda inputs: inputs, ["a", "b"], 3, [1], 0, "backward")
    assert run([1, 2]) == ["result"]
    assert asked["stack_traces"] == [None] * 3
    assert (asked["is_backward"], asked["is_inference"], asked["device_index"]) == (True, False, 0)
    assert [item.name for item in asked["placeholders"]] == ["a", "b"]


def test_cuda_graphs_of_integers_are_kept_apart(monkeypatch):
    from torch._inductor import cudagraph_trees

    added = []

    def stand_in(function, inputs, *_, **__):
        added.append(list(inputs))
        return lambda later: ["replayed", *later], ["first"]

    monkeypatch.setattr(cudagraph_trees, "cudagraphify", stand_in)
    run = compat.cuda_graph_recorded(lambda inputs: inputs, ["a", "b"], 1, [], 0, "inference")
    value = torch.ones(1)
    assert [run([value, size])[0] for size in (3, 3, 4, 3)] == ["first", "replayed", "first", "replayed"]
    assert [size for _, size in added] == [3, 4]


def _tree(monkeypatch, tensors):
    """A stand-in for torch's manager that has just run a graph with these results."""
    from torch._inductor import cudagraph_trees as trees

    class Kept:
        def _run(self, inputs, function):
            return "replayed"

    node, manager = Kept(), Kept()
    node.unaliased_in_all_paths = [True] * len(tensors)
    node.cached_tensor_outputs = list(tensors)
    # Torch makes its tensors of objects for storages, which are counted.
    node.storages = [item.untyped_storage() for item in tensors]

    at = weakref.ref(node)

    def unheld(place):
        return sys.getrefcount(at().cached_tensor_outputs[place]) == 2

    node.outputs_weakrefs = [
        trees.StorageWeakRefWrapper(item, extra_ref_check=functools.partial(unheld, place))
        for place, item in enumerate(tensors)
    ]
    manager.current_node, manager.ids_to_funcs, manager.graph = node, {}, Kept()
    manager.can_start_new_generation, manager.get_curr_generation = lambda: True, lambda: 7
    monkeypatch.setattr(trees, "get_manager", lambda device, create_if_none_exists: manager)
    return node, manager


def test_cuda_graph_tree(monkeypatch):
    node, manager = _tree(monkeypatch, [torch.ones(3), torch.ones(2, 2)])
    tree = compat.cuda_graph_tree(0)
    assert tree is compat.cuda_graph_tree(0)
    assert (tree.begins_anew, tree.generation, tree.guarded) == (True, 7, True)
    assert manager._run([], 1) == "replayed"
    results = list(node.cached_tensor_outputs)
    found = tree.latest([torch.ones(3), *results])
    assert (found.places, found.others) == ((1, 2), (0,))
    assert tree.latest([results[0], results[0].view(3, 1)]) is None
    assert tree.latest([]) is None


def test_what_is_kept_of_a_path_lives_until_it_ends(monkeypatch):
    node, manager = _tree(monkeypatch, [torch.ones(3)])
    tree = compat.cuda_graph_tree(0)
    manager.can_start_new_generation = lambda: False
    tree.keep(list(node.cached_tensor_outputs))
    tree.take_back()
    assert node.outputs_weakrefs[0]() is not None
    manager.can_start_new_generation = lambda: True
    tree.take_back()
    assert node.outputs_weakrefs[0]() is None


def test_backward_keeps_graph():
    seen = []

    def look(gradient):
        seen.append(compat.backward_keeps_graph())
        return gradient

    value = torch.ones(2, requires_grad=True)
    loss = value.sin().sum()
    value.register_hook(look)
    loss.backward(retain_graph=True)
    loss.backward()
    assert (seen, compat.backward_keeps_graph()) == ([True, False], False)


@pytest.fixture(scope="module")
def aoti_package(tmp_path_factory):
    """A small program, compiled ahead, and what it should compute."""
    model, value = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), torch.ones(2, 4)
    with torch.no_grad():
        program = torch.export.export(model, (value,))
        path = compat.aoti_packaged(program, str(tmp_path_factory.mktemp("aoti") / "small.pt2"))
        return path, value, model(value)


@pytest.mark.nightly
def test_aoti_packaged(aoti_package):
    assert os.path.getsize(aoti_package[0]) > 1000


@pytest.mark.nightly
def test_aoti_loaded(aoti_package):
    path, value, wanted = aoti_package
    torch.testing.assert_close(compat.aoti_loaded(path)(value), wanted)


def _frames_of(function, *calls):
    """What the door says at each call of a backend."""
    found = []

    def backend(graph_module, _):
        found.append((compat.graph_break_of(graph_module), compat.recompile_reason()))
        return graph_module

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend)
    for arguments in calls:
        compiled(*arguments)
    return found


def test_graph_break_of():
    def function(value):
        value = value.sin()
        print(end="")
        return value.cos()

    (broken, _), (whole, _) = _frames_of(function, (torch.ones(3),))
    assert whole is None
    assert broken.file == __file__ and broken.function == "function"
    assert broken.line == function.__code__.co_firstlineno + 2
    assert "print" in broken.explanation and broken.hint and broken.reason


def test_recompile_reason():
    found = _frames_of(lambda value: value + 1, (torch.ones(3),), (torch.ones(3, dtype=torch.float64),))
    reasons = [reason for _, reason in found]
    assert reasons[0] == "" and "dtype" in reasons[1] and "\n" not in reasons[1]
    assert compat.recompile_reason() == ""


def test_every_thread_has_trees():
    """Torch 2.11 gives them to the thread alone that imported its module."""
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(compat.cuda_graph_tree, 0).result() is None


def test_trees_outlive_the_backward_that_came_first():
    """The engine takes back what a backward adds to its state; torch 2.11 freed it under the thread then."""
    seen = []

    class Looking(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value.clone()

        @staticmethod
        def backward(ctx, gradient):
            seen.append(vars(trees_of_thread().local).get("tree_manager_containers"))
            return gradient

    def train():
        from torch._inductor import cudagraph_trees as trees

        for _ in range(2):
            Looking.apply(torch.ones(2, requires_grad=True)).sum().backward()
            gc.collect()
            trees_of_thread()
            assert sys.getrefcount(vars(trees.local)["tree_manager_containers"]) >= 2
            seen.append(trees.get_obj(trees.local, "tree_manager_containers"))

    with ThreadPoolExecutor(1) as pool:
        pool.submit(train).result()
    assert seen[0] is not None
    assert all(item is seen[0] for item in seen), seen


@pytest.fixture
def asked_anew():
    """Whether torch takes references is found out again, before and after."""
    graph_trees._stash_takes_a_reference.cache_clear()
    yield
    graph_trees._stash_takes_a_reference.cache_clear()


@pytest.mark.usefixtures("asked_anew")
def test_trees_outlive_every_backward(monkeypatch):
    """Torch 2.11: each state that ends gives up a reference that was not taken when the object was put into it."""
    from torch._inductor import cudagraph_trees as trees

    name, held = "tree_manager_containers", {}

    def stash(key, value):
        end_of_backward()
        held[key] = id(value)

    def end_of_backward():
        for key in list(held):
            ctypes.pythonapi.Py_DecRef(ctypes.cast(held.pop(key), ctypes.py_object))

    monkeypatch.setattr(torch._C, "_is_key_in_tls", lambda key: False)
    monkeypatch.setattr(torch._C, "_stash_obj_in_tls", stash)

    def count():
        own = vars(trees.local)[name]
        return sys.getrefcount(own)

    def train():
        trees_of_thread()
        for own in [*vars(trees.local).values()] * 9:  # what is freed here would end the process
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(own))
        end_of_backward()
        before = count()
        for _ in range(3):
            trees_of_thread()
            end_of_backward()
        return count() - before

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(train).result() == 0


def test_a_backward_takes_the_trees_of_its_forward():
    """Also in a thread that has others of its own from a backward before."""
    from torch._inductor import cudagraph_trees as trees

    trees_here = trees_of_thread()
    others = {}, defaultdict(threading.Lock)
    names = ("tree_manager_containers", "tree_manager_locks")
    kept = [trees_here.get_obj(trees.local, name) for name in names]
    for name, value in zip(names, others, strict=True):
        setattr(trees.local, name, value)
    trees_of_thread()
    assert [trees.get_obj(trees.local, name) for name in names] == kept
    assert trees.get_obj(trees.local, names[0]) is kept[0]


def test_who_holds_results_of_a_graph(monkeypatch):
    node, _ = _tree(monkeypatch, [torch.ones(3), torch.ones(2, 2)])
    tree = compat.cuda_graph_tree(0)
    found = tree.latest(list(node.cached_tensor_outputs))
    assert not found.held()
    for hold in (lambda item: item, torch.Tensor.detach, lambda item: item[0]):
        held = hold(node.cached_tensor_outputs[1])
        assert found.held()
        del held
        assert not found.held()
    # Held by autograd alone, with no object of Python's.
    weight = torch.ones(2, 2, requires_grad=True)
    held = weight * node.cached_tensor_outputs[1]
    assert found.held()
    del held
    assert not found.held()
    held = node.cached_tensor_outputs[0]
    node.cached_tensor_outputs.clear()
    node.storages.clear()
    assert found.held()
    del held
    assert not found.held()


def test_memory_of_held_results_outlives_the_tree(monkeypatch):
    node, manager = _tree(monkeypatch, [torch.ones(3)])
    tree = compat.cuda_graph_tree(0)
    held, memory = node.cached_tensor_outputs[0].detach(), weakref.ref(manager.graph)
    tree.hand_out(tree.latest(list(node.cached_tensor_outputs)))
    monkeypatch.undo()
    del tree, node, manager
    gc.collect()
    assert memory() is not None
    compat.forget_cuda_graphs()
    assert memory() is not None
    del held
    compat.forget_cuda_graphs()
    assert memory() is None


def test_storages_of():
    tensors = [torch.ones(3), torch.ones(2)]
    storages = compat.storages_of([*tensors, None])
    assert len(storages) == 2
    assert compat.storages_in_use(storages)
    alias = tensors[1].detach()
    tensors.clear()
    assert compat.storages_in_use(storages)
    del alias
    assert not compat.storages_in_use(storages)


def test_storages_in_use():
    assert not compat.storages_in_use([])
    storages = compat.storages_of([torch.ones(1)])
    assert not compat.storages_in_use(storages)


def test_cuda_graph_obstacle():
    assert compat.cuda_graph_obstacle(make_fx(torch.relu, tracing_mode="fake")(torch.ones(3))) == ""
    graph = torch.fx.Graph()
    waits = torch.ops.aten._fused_moving_avg_obs_fq_helper.default
    graph.output((graph.call_function(waits, (graph.placeholder("value"),)),))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    assert compat.cuda_graph_obstacle(module) == "aten._fused_moving_avg_obs_fq_helper.default"


def test_why_group_is_not_recorded(monkeypatch):
    assert compat.why_group_is_not_recorded("0", 0) == "there is no process group"
    with as_rank(0, torch.distributed.HashStore()):
        assert compat.why_group_is_not_recorded("0", 0) == "process group 0 is not NCCL's"
        assert compat.why_group_is_not_recorded("none such", 0).endswith("has no backend for GPUs here")
        backend = torch.distributed.group.WORLD._get_backend(torch.device("cuda", 0))
        monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", type(backend), raising=False)
        assert compat.why_group_is_not_recorded("0", 0) == ""


def test_ends_with_groups(monkeypatch):
    from torch._inductor import cudagraph_trees

    # Torch's nodes are known by themselves, not by what they hold.
    nodes = [type("Node", (), {"graph": "its kernels"})() for _ in range(3)]
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    groups = [frozenset({"0"}), frozenset({"none such", "0"}), frozenset({"none such"})]
    with as_rank(0, torch.distributed.HashStore()):
        for node, names in zip(nodes, groups, strict=True):
            manager = types.SimpleNamespace(current_node=node)
            monkeypatch.setattr(cudagraph_trees, "get_manager", lambda *_, manager=manager, **__: manager)
            compat.ends_with_groups(names, 0)
        assert [node.graph for node in nodes] == ["its kernels"] * 3
    assert [node.graph for node in nodes] == [None, None, "its kernels"]


def test_record_without_other_ranks(monkeypatch):
    monkeypatch.setenv("NCCL_GRAPH_REGISTER", "1")
    compat.record_without_other_ranks()
    assert os.environ["NCCL_GRAPH_REGISTER"] == "1"
    monkeypatch.delenv("NCCL_GRAPH_REGISTER")
    compat.record_without_other_ranks()
    assert os.environ["NCCL_GRAPH_REGISTER"] == "0"


def test_cuda_graphs_enter_backward(monkeypatch):
    from torch._inductor import cudagraph_trees

    said = []
    manager = types.SimpleNamespace(set_to_running_backward=lambda: said.append("backward"))
    monkeypatch.setattr(cudagraph_trees, "get_manager", lambda device, create_if_none_exists: manager)
    compat.cuda_graphs_enter_backward(0)
    monkeypatch.setattr(cudagraph_trees, "get_manager", lambda device, create_if_none_exists: None)
    compat.cuda_graphs_enter_backward(0)
    assert said == ["backward"]


def test_graphs_apart_go_on_where_they_were(monkeypatch):
    from torch._inductor import cudagraph_trees as trees

    ended = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: ended.append(device))
    device = 4712
    before, apart = trees.get_container(device), compat.GraphsApart(device)
    with apart.inside():
        first = trees.get_container(device)
        first.tree_manager = types.SimpleNamespace(shutdown=lambda: ended.append("shut down"))
    assert trees.get_container(device) is before
    with apart.inside():
        assert trees.get_container(device) is first
    assert ended == []
    apart.end()
    apart.end()
    assert ended == [device, "shut down"]


def test_cuda_graphs_apart(monkeypatch):
    from torch._inductor import cudagraph_trees as trees

    ended = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: ended.append(device))
    device = 4711
    trees.get_obj(trees.local, "tree_manager_containers").pop(device + 1, None)  # Of another test.
    before = trees.get_container(device)
    with pytest.raises(KeyError), compat.cuda_graphs_apart(device):
        apart = trees.get_container(device)
        assert apart is not before
        apart.tree_manager = types.SimpleNamespace(shutdown=lambda: ended.append("shut down"))
        raise KeyError
    assert trees.get_container(device) is before
    assert ended == [device, "shut down"]
    with compat.cuda_graphs_apart(device + 1):
        pass
    assert device + 1 not in trees.get_obj(trees.local, "tree_manager_containers")
    del trees.get_obj(trees.local, "tree_manager_containers")[device]


def test_inductor_attends_on_processor():
    from torch._inductor.kernel.flex import flex_cpu

    assert compat.inductor_attends_on_processor() is bool(flex_cpu.check_cpu_supported())


def test_copies_of():
    values = [torch.randn(3, 4).t(), torch.arange(5), torch.zeros(0, 2)]
    copies = compat.copies_of(values)
    assert all(torch.equal(copy, value) for copy, value in zip(copies, values, strict=True))
    assert [copy.stride() for copy in copies] == [value.stride() for value in values]
    assert copies[0].data_ptr() != values[0].data_ptr()
    assert compat.copies_of([]) == []


def test_forget_cuda_graphs():
    compat.forget_cuda_graphs()
    compat.forget_cuda_graphs()


@pytest.fixture(scope="module")
def compile_processes():
    from torch._inductor import async_compile

    processes = CompileProcesses()
    processes.start()
    yield processes
    async_compile.shutdown_compile_workers()


def test_start_compile_processes(compile_processes):
    from torch._inductor.async_compile import AsyncCompile

    AsyncCompile.wait_pool_ready()
    assert compile_processes.ready()


def test_compile_processes_ready(monkeypatch):
    """Nobody starts processes by asking."""
    from torch._inductor.async_compile import AsyncCompile

    asked: list[int] = []
    processes = CompileProcesses()
    monkeypatch.setattr(AsyncCompile, "use_process_pool", lambda: bool(asked.append(1)) or True)
    assert not processes.ready()
    assert asked == []
    processes.start()
    assert processes.ready()
    assert len(asked) == 2


def test_in_compile_process(compile_processes):
    assert compat.in_compile_process(operator.add, 2, 3).result(timeout=120) == 5
    with pytest.raises(Exception, match="ZeroDivisionError"):
        compat.in_compile_process(operator.truediv, 2, 0).result(timeout=120)


def test_raw_cuda_stream(monkeypatch):
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 4711 + device, raising=False)
    assert compat.raw_cuda_stream(1) == 4712


def test_gpu_allocator():
    with pytest.raises((RuntimeError, AssertionError)) if not torch.cuda.is_available() else contextlib.nullcontext():
        made = compat.gpu_allocator()((2, 3), (1, 2), torch.float16)
        assert made.is_cuda and made.stride() == (1, 2) and made.dtype == torch.float16


def test_current_cuda_device(monkeypatch):
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 3, raising=False)
    assert compat.current_cuda_device() == 3


def test_recorded_random_state():
    with compat.fresh_fake_mode():
        seed, offset = compat.recorded_random_state(0, 8)
    assert [(item.shape, item.dtype) for item in (seed, offset)] == [((1,), torch.int64)] * 2


def test_versions_of() -> None:
    value = torch.zeros(2)
    value.add_(1.0)
    with torch.inference_mode():
        uncounted = torch.zeros(2)
    assert compat.versions_of([value, uncounted]) == [1, None]


def test_set_versions() -> None:
    value, uncounted = torch.zeros(2), torch.zeros(2)
    value.add_(1.0)
    compat.set_versions([value[1:], uncounted], [7, None])
    assert (value._version, uncounted._version) == (7, 0), "a view shares its base's count"


def test_default_store() -> None:
    assert compat.default_store() is None
    store = torch.distributed.HashStore()
    with as_rank(1, store):
        found = compat.default_store()
        assert found is not None and found is compat.default_store()
        found.set("key", "value")
        assert found.get("key") == b"value"
    assert compat.default_store() is None


def test_fake_mode_of():
    mode = compat.fresh_fake_mode()
    with mode:
        value = torch.ones(2)
    assert compat.fake_mode_of([3, [None, (value,)]]) is mode
    with pytest.raises(ValueError, match="no fake tensor"):
        compat.fake_mode_of([torch.ones(2)])


def _symbol():
    """A shape environment, and a size of it that no guard is about."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

    shape_env = ShapeEnv()
    symbol = shape_env.create_symbol(7, source=ConstantSource("size"), dynamic_dim=DimDynamic.DYNAMIC)
    return shape_env, shape_env.create_symintnode(symbol, hint=7)


def test_guards_suppressed():
    shape_env, size = _symbol()
    mode = types.SimpleNamespace(shape_env=shape_env)
    with compat.guards_suppressed(mode):
        assert size < 100
    assert not shape_env.guards
    with compat.guards_suppressed(types.SimpleNamespace(shape_env=None)):
        assert size < 50
    assert len(shape_env.guards) == 1


def test_guards_counted():
    shape_env, size = _symbol()
    with compat.guards_suppressed(types.SimpleNamespace(shape_env=shape_env)):
        with compat.guards_counted():
            assert size < 100
        assert len(shape_env.guards) == 1
        assert size < 50
    assert len(shape_env.guards) == 1


def test_is_guarded():
    shape_env, size = _symbol()
    symbol = size.node.expr
    assert not compat.is_guarded(shape_env, symbol < 100)
    assert size < 50
    assert compat.is_guarded(shape_env, symbol < 100)
    assert not compat.is_guarded(shape_env, symbol < 10) and not compat.is_guarded(None, symbol < 100)
    assert len(shape_env.guards) == 1


def test_kernels_are_composite():
    assert compat.kernels_are_composite(torch.ops.aten.reshape.default)
    assert not compat.kernels_are_composite(torch.ops.aten.add.Tensor)


def test_every_public_function_has_a_test() -> None:
    functions = [
        name
        for name, value in inspect.getmembers(compat, inspect.isfunction)
        if not name.startswith("_") and value.__module__.startswith(compat.__name__)
    ]
    assert len(functions) > 30
    assert [name for name in functions if f"test_{name}" not in globals()] == []


def test_the_trace_that_goes_on() -> None:
    elsewhere = torch.ones(2)

    def traced(x: torch.Tensor) -> torch.Tensor:
        trace = compat.Trace()
        y = x + 1
        node = trace.node_of(y)
        assert node is not None and node is next(iter(reversed(trace.graph.nodes)))
        assert trace.node_of(elsewhere) is None
        copy = trace.copied(node, lambda source: source)
        z = trace.stands_for(copy, lambda: torch.empty(3))
        assert trace.node_of(z) is copy and copy.args == node.args and copy is not node
        return z * 2

    mode = compat.fresh_fake_mode()
    with compat.tracing_apart(mode), mode:
        graph_module = make_fx(traced, tracing_mode="real", _allow_non_fake_inputs=True)(torch.empty(3))
    torch.testing.assert_close(graph_module(torch.zeros(3)), torch.full((3,), 2.0))
    with pytest.raises(ValueError, match="nothing is traced"):
        compat.Trace()


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Graphs whose code is written from now on."""
    graphs: list[Any] = []
    original = torch.fx.Graph.python_code

    def counted(self: torch.fx.Graph, *given: Any, **named: Any) -> Any:
        graphs.append(self)
        return original(self, *given, **named)

    monkeypatch.setattr(torch.fx.Graph, "python_code", counted)
    return graphs


def test_graph_module_of(written: list[Any]) -> None:
    traced = torch.fx.symbolic_trace(torch.nn.Linear(2, 2))
    before = len(written)
    module = compat.graph_module_of(traced, traced.graph)
    module.recompile()
    assert len(written) == before
    torch.testing.assert_close(module(torch.ones(2)), traced(torch.ones(2)))
    assert len(written) == before + 1


def test_written_when_run(written: list[Any]) -> None:
    with compat.written_when_run():
        made = make_fx(lambda x: x * 3)(torch.ones(2))
    assert not written
    torch.testing.assert_close(made(torch.ones(2)), torch.full((2,), 3.0))
    assert len(written) == 1
    make_fx(lambda x: x * 3)(torch.ones(2))
    assert len(written) == 2


def test_written_at_once() -> None:
    with compat.written_when_run():
        with compat.written_at_once():
            plain = make_fx(torch.relu)(torch.ones(2))
        later = make_fx(torch.relu)(torch.ones(2))
    assert torch.fx.GraphModule in type(plain).__bases__ and torch.fx.GraphModule not in type(later).__bases__


def test_forward_of(written: list[Any]) -> None:
    traced = torch.fx.symbolic_trace(lambda x: x + 1)
    forward = compat.forward_of(compat.graph_module_of(traced, traced.graph))
    before = len(written)
    torch.testing.assert_close(forward(torch.zeros(2)), torch.ones(2))
    assert len(written) == before and compat.forward_of(traced) == traced.forward


def test_every_operator() -> None:
    seen: list[tuple[str, int]] = []
    with compat.EveryOperator(lambda operator, results: seen.append((str(operator), len(results)))):
        torch.ones(2, 2).t().add_(1)
    assert seen == [("aten.ones.default", 1), ("aten.t.default", 0), ("aten.add_.Tensor", 1)]


def test_what_watches_operators_may_change_results() -> None:
    with compat.EveryOperator(lambda operator, results: [item.fill_(7) for item in results]):
        made = torch.ones(2) + 1
    torch.testing.assert_close(made, torch.full((2,), 7.0))


def test_dynamo_anew() -> None:
    before = torch._dynamo.config.capture_scalar_outputs
    with compat.dynamo_anew(not before, 3):
        assert torch._dynamo.config.capture_scalar_outputs is not before
        assert torch._dynamo.config.recompile_limit == 3
    assert torch._dynamo.config.capture_scalar_outputs is before


def test_saved_positions(training: Graphs) -> None:
    def returned(phase: str) -> torch.fx.Node:
        (output,) = training.by_phase[phase].graph.find_nodes(op="output")
        return output

    forward = returned("forward")
    saved = compat.saved_positions(forward)
    assert saved and saved < frozenset(range(len(forward.args[0])))
    assert compat.saved_positions(returned("backward")) == frozenset()


def test_mark_saved() -> None:
    graph = torch.fx.Graph()
    output = graph.output(tuple(graph.placeholder(name) for name in "abc"))
    compat.mark_saved(output, frozenset({1, 2}), 3)
    assert compat.saved_positions(output) == {1, 2}


def test_values_lie_in_memory() -> None:
    negated = torch.ones(2, dtype=torch.complex64).conj().imag
    assert [compat.values_lie_in_memory(value) for value in (negated, torch.ones(2), 3)] == [False, True, True]


def test_zeros_unwritten() -> None:
    zeros = compat.zeros_unwritten()((3,), dtype=torch.float32, device="cpu")
    assert not compat.values_lie_in_memory(zeros)
    torch.testing.assert_close(zeros + 1, torch.ones(3))


def test_symbolic_kernels() -> None:
    mode = compat.fresh_fake_mode()
    size = compat.fresh_symbol(mode, "size", 7, 2, None)
    with mode, compat.symbolic_kernels(False), pytest.raises(RuntimeError, match="symbolic"):
        torch.ops.aten.constant_pad_nd(torch.empty(size), [-1, 0])
    with mode, compat.symbolic_kernels(True):
        padded = torch.ops.aten.constant_pad_nd(torch.empty(size), [-1, 0])
    assert padded.shape == (size - 1,)


def exported_sum() -> Any:
    class Summing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, scale: float = 2.0) -> dict[str, torch.Tensor]:
            return {"sum": self.inside(x).to(torch.float64).sum(0) * scale}

    rows = torch.export.Dim("rows", min=2)
    return torch.export.export(Summing(), (torch.ones(3, 4),), dynamic_shapes=({0: rows},))


def test_decomposed_as_compiled() -> None:
    targets = {str(node.target) for node in compat.decomposed_as_compiled(exported_sum()).graph.nodes}
    assert "aten.addmm.default" in targets and "aten.linear.default" not in targets


def test_forward_names() -> None:
    assert compat.forward_names(exported_sum())[:1] == ("x",)
    assert compat.forward_names(object()) == ()


def test_tensor_checks() -> None:
    graph = torch.fx.Graph()
    value = graph.placeholder("x")
    graph.call_function(torch.ops.aten._assert_tensor_metadata.default, (value,))
    graph.output(value)
    assert len(list(compat.tensor_checks(graph))) == 1


def test_tree_children() -> None:
    spec = exported_sum().call_spec.out_spec
    kind, keys, (leaf,) = compat.tree_children(spec)
    assert (kind, list(keys)) == (dict, ["sum"]) and compat.tree_children(leaf) is None
