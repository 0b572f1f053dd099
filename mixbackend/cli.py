"""The command line: ``mixbackend COMMAND``.

Place: outermost; parses, calls one body per command (in ``mixbackend.commands`` and ``mixbackend.benchmarks``), and
prints errors.
Invariants: ``--help`` imports neither torch nor a backend; thread settings are made before torch is loaded; an error
raised on purpose is printed without a traceback (``MIXBACKEND_DEBUG=1`` shows it).
Exit status: 0 well, 1 an error or a failed check, 2 a wrong command line.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

import mixbackend
from mixbackend.runtime.thread_environment import make_threads_sleep

app = typer.Typer(
    name="mixbackend",
    help="torch.compile with a mixture of backends: every part of a model on the backend that runs it fastest.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)
config_app = typer.Typer(help="Configuration files: check one, or print the schema.", no_args_is_help=True)
bench_app = typer.Typer(help="Benchmarks, in interleaved rounds against eager and others.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(bench_app, name="bench")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]

PASSES_ON: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""For commands whose options are declared by their body: it has ``main(arguments: Sequence[str]) -> int``."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit status.

    Args:
        arguments: without the program's name; default, those of the process.
    """
    make_threads_sleep(os.environ)
    try:
        app(args=None if arguments is None else list(arguments), prog_name="mixbackend")
    except Exception as error:  # the outermost border: whatever a model or backend raises is told, not dumped
        _tell(error)
        raise SystemExit(1) from None


def _tell(error: Exception) -> None:
    if os.environ.get("MIXBACKEND_DEBUG", "0") not in ("", "0"):
        traceback.print_exception(type(error), error, error.__traceback__)
        return
    from mixbackend.contracts.errors import MixbackendError

    own = isinstance(error, MixbackendError)
    print(str(error) if own else f"{type(error).__name__}: {error}", file=sys.stderr)
    if not own:
        print("  what to do: MIXBACKEND_DEBUG=1 shows where this came from", file=sys.stderr)


def _body(module: str, context: typer.Context) -> None:
    raise typer.Exit(import_module(module).main(context.args))


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"mixbackend {mixbackend.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
def backends(as_json: AsJson = False) -> None:
    """List every registered backend: usable on this machine, or why not."""
    from mixbackend.commands import backends as body

    body.run(as_json)


@app.command()
def explain(
    model: Annotated[
        str,
        typer.Argument(help="An entry of the model suite, or module:factory; factory() gives (module, args, kwargs)."),
    ],
    config: Annotated[str | None, typer.Option(help="Configuration file (YAML).")] = None,
    train: Annotated[bool, typer.Option("--train", help="Forward and backward of a training step.")] = False,
    device: Annotated[str, typer.Option(help="Where the model runs.")] = "cpu",
    html: Annotated[Path | None, typer.Option(help="Also write the report to this HTML file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compile a model, run it once, and say what ran where, why, and what would make it faster."""
    from mixbackend.commands import explain as body

    body.run(model, config, train, device, html, as_json)


@config_app.command("check")
def config_check(
    file: Annotated[str, typer.Argument(help="Configuration file (YAML).")],
    as_json: AsJson = False,
) -> None:
    """Report every problem of a configuration file, with line, column and suggestion."""
    from mixbackend.commands import config as body

    raise typer.Exit(body.check(file, as_json))


@config_app.command("schema")
def config_schema(
    as_json: Annotated[bool, typer.Option("--json", help="As without: a JSON Schema is JSON.")] = False,
) -> None:
    """Print the JSON Schema of configuration files, for editors."""
    from mixbackend.commands import config as body

    body.schema()


@bench_app.command("suite", context_settings=PASSES_ON, add_help_option=False)
def bench_suite(context: typer.Context) -> None:
    """Run the model suite: accuracy against eager, speed, and where every node went."""
    _body("mixbackend.benchmarks.suite", context)


@bench_app.command("peers", context_settings=PASSES_ON, add_help_option=False)
def bench_peers(context: typer.Context) -> None:
    """Time auto() against eager, inductor, ONNX Runtime and OpenVINO on whole models at true size."""
    _body("mixbackend.commands.bench_peers", context)


@bench_app.command("partitioner")
def bench_partitioner(
    nodes: Annotated[str, typer.Option(help="Sizes of the graphs, with commas between.")] = "1000,10000,40000",
    seed: Annotated[int, typer.Option(help="Order of the model blocks in the graphs.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Time placement on large graphs made of blocks of real models."""
    from mixbackend.commands import bench_partitioner as body

    body.run(nodes, seed, as_json)


@bench_app.command("kernels")
def bench_kernels(
    sizes: Annotated[str, typer.Option(help="small, medium, large; with commas between.")] = "small,large",
    dtypes: Annotated[str, typer.Option(help="float32, bfloat16; with commas between.")] = "float32,bfloat16",
    only: Annotated[str, typer.Option(help="Only patterns whose name contains this.")] = "",
    rounds: Annotated[int, typer.Option(help="Rounds in which each peer takes its turn.")] = 15,
    as_json: AsJson = False,
) -> None:
    """Time generated kernels against inductor's and eager, pattern by pattern."""
    from mixbackend.commands import bench_kernels as body

    body.run(sizes, dtypes, only, rounds, as_json)


@bench_app.command("first-calls")
def bench_first_calls(
    models: Annotated[str, typer.Option(help="Entries of the suite, with commas between; default: ten of them.")] = "",
    phase: Annotated[str, typer.Option(help="inference or training.")] = "inference",
    backends: Annotated[str, typer.Option(help="Backends the mixture may use.")] = "codegen,eager",
    timeout: Annotated[float, typer.Option(help="Seconds for one first call.")] = 600.0,
    as_json: AsJson = False,
) -> None:
    """Time first calls with cold and warm caches, a process each, against inductor and eager."""
    from mixbackend.commands import bench_first_calls as body

    body.run(models, phase, backends, timeout, as_json)


@bench_app.command("threads")
def bench_threads(
    rounds: Annotated[int, typer.Option(help="Rounds in which each process takes its turn.")] = 15,
    calls: Annotated[int, typer.Option(help="Calls of every part in a turn.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Time regions of several pools of threads in turns, against each of them alone in a process."""
    from mixbackend.commands import bench_threads as body

    body.run(rounds, calls, as_json)


@app.command(context_settings=PASSES_ON, add_help_option=False)
def demo(context: typer.Context) -> None:
    """Embed real sentences with a pretrained encoder and compare with eager; then fine-tune a little."""
    _body("mixbackend.commands.demo", context)
