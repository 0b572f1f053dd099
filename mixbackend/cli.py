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
from mixbackend.host.thread_environment import make_threads_sleep

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
cache_app = typer.Typer(help="What is remembered on this machine: look, clear, carry elsewhere.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(bench_app, name="bench")
app.add_typer(cache_app, name="cache")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
CacheOf = Annotated[str | None, typer.Option("--config", help="Configuration file (YAML) that names the cache.")]
CacheFolder = Annotated[str | None, typer.Option("--dir", help="Cache folder, instead of the configured one.")]

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

    # Dynamo wraps what a backend raises.
    inner = getattr(error, "inner_exception", None)
    error = inner if isinstance(inner, MixbackendError) else error
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
    lock: Annotated[Path | None, typer.Option(help="Place as this lock file says.")] = None,
    frozen: Annotated[bool, typer.Option("--frozen", help="Whatever differs from the lock file is an error.")] = False,
    why: Annotated[
        list[str] | None,
        typer.Option(help="Only explain these nodes: pattern of a name, operator or module; several times for more."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compile a model, run it once, and say what ran where, why, and what would make it faster."""
    from mixbackend.commands import explain as body

    body.run(model, config, train, device, html, lock, frozen, why or (), as_json)


@app.command()
def tune(
    model: Annotated[str, typer.Argument(help="As of explain: an entry of the model suite, or module:factory.")],
    lock: Annotated[Path | None, typer.Option(help="Write the placements to this file, for review.")] = None,
    config: Annotated[str | None, typer.Option(help="Configuration file (YAML).")] = None,
    train: Annotated[bool, typer.Option("--train", help="Forward and backward of a training step.")] = False,
    device: Annotated[str, typer.Option(help="Where the model runs.")] = "cpu",
    dynamic: Annotated[bool, typer.Option("--dynamic", help="With symbolic sizes from the first call on.")] = False,
    budget: Annotated[float | None, typer.Option(help="Seconds of measuring for one graph.", min=0.001)] = None,
    frozen: Annotated[
        bool, typer.Option("--frozen", help="Measure and write nothing: check that the lock file still holds.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure placements of a model against one another and remember the fastest; write or check a lock file."""
    from mixbackend.commands import tune as body

    raise typer.Exit(body.run(body.Wanted(model, config, train, device, dynamic), lock, budget, frozen, as_json))


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


@cache_app.command("info")
def cache_info(config: CacheOf = None, dir: CacheFolder = None, as_json: AsJson = False) -> None:
    """What lies in the cache folder: artifacts, what was learned, what is out of date."""
    from mixbackend.commands import cache as body

    body.info(config, dir, as_json)


@cache_app.command("clear")
def cache_clear(
    artifacts: Annotated[bool, typer.Option("--artifacts", help="Compiled regions.")] = False,
    decisions: Annotated[bool, typer.Option("--decisions", help="What tuning decided.")] = False,
    measurements: Annotated[bool, typer.Option("--measurements", help="Timings and rates.")] = False,
    quarantine: Annotated[bool, typer.Option("--quarantine", help="Backends that failed on regions.")] = False,
    native: Annotated[bool, typer.Option("--native", help="Shared objects of the code generator.")] = False,
    stale: Annotated[bool, typer.Option("--stale", help="Only what no backend of this machine can use.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    config: CacheOf = None,
    dir: CacheFolder = None,
    as_json: AsJson = False,
) -> None:
    """Remove everything from the cache folder, or what the options name."""
    from mixbackend.commands import cache as body

    named = {"artifacts": artifacts, "decisions": decisions, "measurements": measurements, "quarantine": quarantine}
    body.clear(config, dir, {**named, "native": native}, stale, dry_run, as_json)


@cache_app.command("export")
def cache_export(
    target: Annotated[str, typer.Argument(help="File or fsspec URL of the archive to write.")],
    config: CacheOf = None,
    dir: CacheFolder = None,
    as_json: AsJson = False,
) -> None:
    """Write everything that was learned and compiled into one archive."""
    from mixbackend.commands import cache as body

    body.export(target, config, dir, as_json)


@cache_app.command("import")
def cache_import(
    source: Annotated[str, typer.Argument(help="File or fsspec URL of such an archive.")],
    trust: Annotated[
        bool, typer.Option("--trust", help="Take compiled regions from a URL: only you know who can write there.")
    ] = False,
    config: CacheOf = None,
    dir: CacheFolder = None,
    as_json: AsJson = False,
) -> None:
    """Take what fits this machine from an archive; say why for the rest."""
    from mixbackend.commands import cache as body

    body.bring(source, config, dir, trust, as_json)


@bench_app.command("suite", context_settings=PASSES_ON, add_help_option=False)
def bench_suite(context: typer.Context) -> None:
    """Run the model suite: accuracy against eager, speed, and where every node went."""
    _body("mixbackend.benchmarks.suite", context)


@bench_app.command("peers", context_settings=PASSES_ON, add_help_option=False)
def bench_peers(context: typer.Context) -> None:
    """Time auto() against eager, inductor, ONNX Runtime and OpenVINO on whole models at true size."""
    _body("mixbackend.benchmarks.commands.peers", context)


@bench_app.command("partitioner")
def bench_partitioner(
    nodes: Annotated[str, typer.Option(help="Sizes of the graphs, with commas between.")] = "1000,10000,40000",
    seed: Annotated[int, typer.Option(help="Order of the model blocks in the graphs.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Time placement on large graphs made of blocks of real models."""
    from mixbackend.benchmarks.commands import partitioner as body

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
    from mixbackend.benchmarks.commands import kernels as body

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
    from mixbackend.benchmarks.commands import first_calls as body

    body.run(models, phase, backends, timeout, as_json)


_MINUTES = Annotated[float, typer.Option(help="Begin nothing more after so many minutes; 0 is no limit.")]
_LABEL = Annotated[str, typer.Option(help="Resume results of our changing code under this name.")]
_THREADS = Annotated[int, typer.Option(help="Of every pool; 0 takes what torch takes.")]
_TIMEOUT = Annotated[float, typer.Option(help="Seconds for one process to answer.")]
_RESUME = Annotated[Path | None, typer.Option(help="Results file; what it holds is not run again.")]


@bench_app.command("tuning")
def bench_tuning(
    models: Annotated[str, typer.Option(help="As of bench peers, with commas between; default: four.")] = "",
    phase: Annotated[str, typer.Option(help="inference or training.")] = "inference",
    backends: Annotated[str, typer.Option(help="That may take part beside eager; default: all usable ones.")] = "",
    tries: Annotated[int, typer.Option(help="How often each model is tuned with nothing remembered.")] = 10,
    budget: Annotated[float, typer.Option(help="Seconds of search for one graph.")] = 120.0,
    rounds: Annotated[int, typer.Option(help="Turns of each placement, where there are several.")] = 15,
    seconds: Annotated[float, typer.Option(help="Length of a turn.")] = 0.5,
    threads: _THREADS = 0,
    timeout: _TIMEOUT = 900.0,
    minutes: _MINUTES = 0.0,
    resume: _RESUME = None,
    label: _LABEL = "",
    as_json: AsJson = False,
) -> None:
    """Tune models again and again: how often the same plan comes out, and what a second run takes."""
    from mixbackend.benchmarks.commands import tuning as body
    from mixbackend.benchmarks.peers.turns import Options

    options = Options(body.chosen_backends(backends), threads, rounds, seconds, timeout)
    file = resume or Path("results") / "tuning.jsonl"
    body.run(models, phase, tries, budget, options, minutes, file, label, as_json)


@bench_app.command("costs")
def bench_costs(
    models: Annotated[str, typer.Option(help="As of bench peers, with commas between; default: ten.")] = "",
    phase: Annotated[str, typer.Option(help="inference or training.")] = "inference",
    backends: Annotated[str, typer.Option(help="That may take part beside eager; default: all usable ones.")] = "",
    costs: Annotated[str, typer.Option(help="priors, calibrated; with commas between.")] = "priors,calibrated",
    blocks: Annotated[int, typer.Option(help="How often every region is timed for five calls.")] = 9,
    threads: _THREADS = 0,
    timeout: _TIMEOUT = 600.0,
    minutes: _MINUTES = 0.0,
    resume: _RESUME = None,
    label: _LABEL = "",
    as_json: AsJson = False,
) -> None:
    """Compare estimated with measured seconds of every region, before and after calibration."""
    from mixbackend.benchmarks.commands import costs as body
    from mixbackend.benchmarks.commands.tuning import chosen_backends
    from mixbackend.benchmarks.peers.turns import Options

    options = Options(chosen_backends(backends), threads, timeout_s=timeout)
    file = resume or Path("results") / "costs.jsonl"
    body.run(models, phase, costs, blocks, options, minutes, file, label, as_json)


@bench_app.command("threads")
def bench_threads(
    rounds: Annotated[int, typer.Option(help="Rounds in which each process takes its turn.")] = 15,
    calls: Annotated[int, typer.Option(help="Calls of every part in a turn.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Time regions of several pools of threads in turns, against each of them alone in a process."""
    from mixbackend.benchmarks.commands import threads as body

    body.run(rounds, calls, as_json)


@app.command(context_settings=PASSES_ON, add_help_option=False)
def demo(context: typer.Context) -> None:
    """Embed real sentences with a pretrained encoder and compare with eager; then fine-tune a little."""
    _body("mixbackend.commands.demo", context)
