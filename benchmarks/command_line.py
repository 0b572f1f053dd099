"""The command line of the benchmarks: ``mixbackend bench COMMAND``.

Place: added to ``mixbackend.cli`` where it is there, in source trees; parses and calls one body per command (in
``commands`` beside this, and ``suite``).
Invariants: importing this, and ``--help``, imports neither torch nor a backend.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

bench_app = typer.Typer(help="Benchmarks, in interleaved rounds against eager and others.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]

PASSES_ON: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""For commands with options that their body declares: it has ``main(arguments: Sequence[str]) -> int``."""


def _body(module: str, context: typer.Context) -> None:
    raise typer.Exit(import_module(module).main(context.args))


@bench_app.command("suite", context_settings=PASSES_ON, add_help_option=False)
def bench_suite(context: typer.Context) -> None:
    """Run the model suite: accuracy against eager, speed, and where every node went."""
    _body("mixbackend.benchmarks.suite", context)


@bench_app.command("peers", context_settings=PASSES_ON, add_help_option=False)
def bench_peers(context: typer.Context) -> None:
    """Time auto() against eager, inductor, ONNX Runtime and OpenVINO on whole models at true size."""
    _body("mixbackend.benchmarks.commands.peers", context)


@bench_app.command("headline", context_settings=PASSES_ON, add_help_option=False)
def bench_headline(context: typer.Context) -> None:
    """Time the suite's models on a GPU against inductor and eager, and write the table and picture of them."""
    _body("mixbackend.benchmarks.commands.headline", context)


@bench_app.command("distributed", context_settings=PASSES_ON, add_help_option=False)
def bench_distributed(context: typer.Context) -> None:
    """Time training on several GPUs: DDP, FSDP2, tensor parallel and pipeline stages, against eager and inductor."""
    _body("mixbackend.benchmarks.commands.distributed", context)


@bench_app.command("decode", context_settings=PASSES_ON, add_help_option=False)
def bench_decode(context: typer.Context) -> None:
    """Time steps of generation on processors against eager, inductor, OpenVINO, llama.cpp and a copy of the weights."""
    _body("mixbackend.benchmarks.commands.decode", context)


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
    models: Annotated[
        str,
        typer.Option(
            help="mlp, entries of the suite, true-size:NAME of bench peers (true-size for all of these) and gpu:NAME, "
            "with commas between; default: six that are neither."
        ),
    ] = "",
    phase: Annotated[str, typer.Option(help="inference or training.")] = "inference",
    backends: Annotated[str, typer.Option(help="Backends the mixture may use; default: all usable ones.")] = "",
    rounds: Annotated[int, typer.Option(help="Rounds in which each peer takes its turn.")] = 3,
    flame_graphs: Annotated[
        Path | None, typer.Option(help="Folder for collapsed stacks of our processes, as flame graph programs read.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for one process.")] = 600.0,
    as_json: AsJson = False,
) -> None:
    """Time processes with one first call, caches empty and filled, against aot_eager and inductor."""
    from mixbackend.benchmarks.commands import first_calls as body

    body.run(models, phase, backends, rounds, flame_graphs, timeout, as_json)


@bench_app.command("first-plans")
def bench_first_plans(
    models: Annotated[str, typer.Option(help="Entries of the suite, with commas between; default: 24 of them.")] = "",
    phase: Annotated[str, typer.Option(help="inference, training or both.")] = "both",
    device: Annotated[str, typer.Option(help="Where they run.")] = "cpu",
    precision: Annotated[str, typer.Option(help="float32, float16 or bfloat16; for training autocast.")] = "float32",
    own: Annotated[
        Path | None, typer.Option(help="This machine's rates as calibrate --export wrote them; default: the cache's.")
    ] = None,
    backends: Annotated[str, typer.Option(help="That plans may use, with commas between; default: all.")] = "",
    budget_s: Annotated[float, typer.Option(help="Seconds after which no model is begun.")] = 3600.0,
    rounds: Annotated[int, typer.Option(help="Turns of each plan.")] = 9,
    keep_own: Annotated[bool, typer.Option("--keep-own", help="Leave this product in the table.")] = False,
    as_json: AsJson = False,
) -> None:
    """Time calls by first plans from tables, this machine left out of them, against those by its own rates."""
    from mixbackend.benchmarks.commands import first_plans as body

    wanted = {"device": device, "precision": precision, "budget_s": budget_s, "rounds": rounds, "keep_own": keep_own}
    body.run(models, phase, own, backends, as_json, **wanted)


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


@bench_app.command("behind")
def bench_behind(
    rounds: Annotated[int, typer.Option(help="Rounds in which each way takes its turn.")] = 5,
    seconds: Annotated[float, typer.Option(help="Of a turn.")] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Time calls of a process beside one that compiles behind it, with one core busy and with all."""
    from mixbackend.benchmarks.commands import behind as body

    body.run(rounds, seconds, as_json)


@bench_app.command("threads")
def bench_threads(
    rounds: Annotated[int, typer.Option(help="Rounds in which each process takes its turn.")] = 15,
    calls: Annotated[int, typer.Option(help="Calls of every part in a turn.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Time regions of several pools of threads in turns, against each of them alone in a process."""
    from mixbackend.benchmarks.commands import threads as body

    body.run(rounds, calls, as_json)
