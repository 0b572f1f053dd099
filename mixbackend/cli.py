"""The command line: ``mixbackend COMMAND``.

Place: outermost; parses, calls one body per command (in ``mixbackend.commands``), and prints errors. What
``mixbackend.benchmarks.command_line`` adds is there in source trees.
Invariants: ``--help`` imports neither torch nor a backend; how threads wait is left to the user; an error
raised on purpose is printed without a traceback (``MIXBACKEND_DEBUG=1`` shows it).
Exit status: 0 well, 1 an error or a failed check, 2 a wrong command line.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

import mixbackend

app = typer.Typer(
    name="mixbackend",
    help="torch.compile with a mixture of backends: every part of a model on the backend that runs it fastest.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)
config_app = typer.Typer(help="Configuration files: check one, or print the schema.", no_args_is_help=True)
cache_app = typer.Typer(help="What is remembered on this machine: look, clear, carry elsewhere.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(cache_app, name="cache")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
CacheOf = Annotated[str | None, typer.Option("--config", help="Configuration file (YAML) that names the cache.")]
CacheFolder = Annotated[str | None, typer.Option("--dir", help="Cache folder, instead of the configured one.")]

_BENCHMARKS = "mixbackend.benchmarks.command_line"

PASSES_ON: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""For commands with options that their body declares: it has ``main(arguments: Sequence[str]) -> int``."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit status.

    Args:
        arguments: without the program's name; default, those of the process.
    """
    try:
        app(args=None if arguments is None else list(arguments), prog_name="mixbackend")
    except Exception as error:  # the outermost border: whatever a model or backend raises is printed, not dumped
        _print_error(error)
        raise SystemExit(1) from None


def _print_error(error: Exception) -> None:
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
    html: Annotated[
        Path | None, typer.Option(help="Also write the report to this HTML file, which needs no network.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="With --html: show what moved since this report, which --json wrote.")
    ] = None,
    lock: Annotated[Path | None, typer.Option(help="Place as this lock file says.")] = None,
    frozen: Annotated[bool, typer.Option("--frozen", help="Whatever differs from the lock file is an error.")] = False,
    why: Annotated[
        list[str] | None,
        typer.Option(help="Only explain these nodes: pattern of a name, operator or module; several times for more."),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Every region, refusal and event by itself, however many there are.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compile a model, run it once, and say what ran where, why, and what would make it faster."""
    from mixbackend.commands import explain as body

    body.run(model, config, train, device, html, against, lock, frozen, why or (), as_json, full)


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


@app.command()
def export(
    model: Annotated[str, typer.Argument(help="As of explain, or a file of torch.export.save (.pt2).")],
    file: Annotated[Path, typer.Argument(help="The package to write.")],
    config: Annotated[str | None, typer.Option(help="Configuration file (YAML).")] = None,
    device: Annotated[str, typer.Option(help="Where the model runs.")] = "cpu",
    dynamic: Annotated[bool, typer.Option("--dynamic", help="Every size that can be is symbolic.")] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure plans against one another first, and package the fastest.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a model as one file that runs without its code and without a compiler (mixbackend.load)."""
    from mixbackend.commands import export as body

    body.run(body.Wanted(model, file, config, device, dynamic, measure), as_json)


@app.command()
def calibrate(
    device: Annotated[str, typer.Option(help="What is measured: cpu or cuda.")] = "cpu",
    budget: Annotated[
        float | None,
        typer.Option("--budget-s", help="Seconds for all backends; the next run goes on where this one ends.", min=1.0),
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write this machine's rows to a table of its family; others in it stay.")
    ] = None,
    config: Annotated[str | None, typer.Option(help="Configuration file (YAML).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Measure although the machine is not quiet.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure rates of this machine, for images and fleets; without, rates of its family are scaled by a look at it."""
    from mixbackend.commands import calibrate as body

    raise typer.Exit(body.run(body.Wanted(device, budget, config, force, export), as_json))


@app.command()
def certify(
    name: Annotated[str, typer.Argument(help="A registered backend, or module:class of one that is not.")],
    ops: Annotated[
        list[str] | None, typer.Option(help="Only operators with this word in their name; several times for more.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Some of everything, in less than two minutes.")] = False,
    jobs: Annotated[
        int | None, typer.Option(help="Processes side by side, one per core; 0: all in this one, unguarded.", min=0)
    ] = None,
    against: Annotated[Path | None, typer.Option(help="JSON of an earlier run: what is worse now fails.")] = None,
    expected: Annotated[Path | None, typer.Option(help="File of expected failures; one that passes fails.")] = None,
    samples: Annotated[str, typer.Option(help="Samples of your own, module:name, beside torch's and ours.")] = "",
    source: Annotated[
        list[str] | None, typer.Option(help="Whose samples: given, own, torch; several times for more. All by default.")
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout-s", help="For one property of one region.", min=1.0)] = 60.0,
    limit: Annotated[float | None, typer.Option("--limit-s", help="Begin nothing later than this.", min=1.0)] = None,
    markdown: Annotated[Path | None, typer.Option(help="Add the page to this file, as CI summaries want it.")] = None,
    badge: Annotated[Path | None, typer.Option(help="Write an endpoint of shields.io to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Hold every claim of a backend against eager, in processes that may crash; exit status 1 if one is wrong."""
    from mixbackend.commands import certify as body

    options = (samples, tuple(source or ()), quick, jobs, timeout, limit, against, expected)
    raise typer.Exit(body.run(body.Wanted(name, tuple(ops or ()), *options), markdown, badge, as_json))


@app.command()
def minify(
    model: Annotated[str, typer.Argument(help="As of explain, or a folder that MIXBACKEND_DUMP wrote.")],
    config: Annotated[
        str | None, typer.Option(help="Configuration file (YAML); of a dump, instead of its own.")
    ] = None,
    train: Annotated[bool, typer.Option("--train", help="Forward and backward of a training step.")] = False,
    device: Annotated[str, typer.Option(help="Where the model runs.")] = "cpu",
    script: Annotated[Path | None, typer.Option(help="Write the script to this file instead of printing it.")] = None,
    timeout: Annotated[float, typer.Option("--timeout-s", help="For compiling a region, and for a call.", min=1)] = 120,
    limit: Annotated[float, typer.Option("--limit-s", help="Then the smallest region so far is taken.", min=1)] = 1800,
    slow: Annotated[float, typer.Option(help="So many times its estimate is slow, if nothing else is wrong.")] = 3.0,
    as_json: AsJson = False,
) -> None:
    """Find the region that a backend fails on, is wrong or slow on, and make it a small script; exit status 1 then."""
    from mixbackend.commands import minify as body

    wanted = body.Wanted(model, config, train, device, timeout, limit, slow)
    raise typer.Exit(body.run(wanted, script, as_json))


@app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
def bisect(
    command: Annotated[list[str], typer.Argument(help="What is run again and again; fails with an exit status.")],
    as_json: AsJson = False,
) -> None:
    """Run a command with torch's CompilerBisector until it names the backend, pass or region that makes it fail."""
    from mixbackend.commands import bisect as body

    raise typer.Exit(body.run(command, as_json))


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
    measurements: Annotated[bool, typer.Option("--measurements", help="Rates.")] = False,
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
        bool, typer.Option("--trust", help="Take compiled regions from a URL: its writers can run code here.")
    ] = False,
    config: CacheOf = None,
    dir: CacheFolder = None,
    as_json: AsJson = False,
) -> None:
    """Take what fits this machine from an archive; say why for the rest."""
    from mixbackend.commands import cache as body

    body.bring(source, config, dir, trust, as_json)


@cache_app.command("why")
def cache_why(
    key: Annotated[str, typer.Argument(help="A key, or how it begins; without, all entries.")] = "",
    model: Annotated[
        str | None, typer.Option(help="As of explain: compare with what this model asks for, its graphs included.")
    ] = None,
    train: Annotated[bool, typer.Option("--train", help="With --model: forward and backward.")] = False,
    config: CacheOf = None,
    dir: CacheFolder = None,
    as_json: AsJson = False,
) -> None:
    """Why a compiled region, a plan or a decision is not used: each field of its key beside what is asked for here."""
    from mixbackend.commands import cache_why as body

    body.run(key, config, dir, model, train, as_json)


def _add_benchmarks() -> None:
    """``mixbackend bench`` where its code is: in a source tree, not in a wheel."""
    if find_spec(_BENCHMARKS) is not None:
        app.add_typer(import_module(_BENCHMARKS).bench_app, name="bench")
    else:
        app.command("bench", context_settings=PASSES_ON, add_help_option=False)(_no_benchmarks)


def _no_benchmarks() -> None:
    """Benchmarks: not in this installation; they run from a source tree."""
    text = "mixbackend bench runs from a source tree (python -m mixbackend bench): this installation has no benchmarks"
    print(text, file=sys.stderr)
    raise typer.Exit(2)


@app.command(context_settings=PASSES_ON, add_help_option=False)
def demo(context: typer.Context) -> None:
    """Embed real sentences with a pretrained encoder and compare with eager; then fine-tune a little."""
    _body("mixbackend.commands.demo", context)


_add_benchmarks()
