"""The thread policy on the real OpenMP runtime, in processes of their own: spinning, forks, exits."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from warm_processes import WarmProcesses

from mixbackend.benchmarks.idle_threads import without_decisions
from mixbackend.host.openmp import loaded_runtimes

HELPERS = '''
import gc, os, time
import torch
from mixbackend.host import threads as threads_module
from mixbackend.host.openmp import loaded_runtimes
from mixbackend.host.threads import sharing

class Owner: pass

value = torch.ones(1 << 17)
out = torch.empty_like(value)

def idle_ticks():
    """Ticks that torch's other threads take in regions with pauses between them, which is almost all waiting."""
    def others():
        total = 0
        for task in os.listdir("/proc/self/task"):
            if int(task) != os.getpid():
                fields = open(f"/proc/self/task/{task}/stat").read().rpartition(")")[2].split()
                total += int(fields[11]) + int(fields[12])
        return total
    torch.add(value, value, out=out)
    time.sleep(0.1)
    before = others()
    for _ in range(60):
        torch.add(value, value, out=out)
        time.sleep(0.01)
    return others() - before
'''


@pytest.fixture(scope="module")
def undecided() -> Iterator[WarmProcesses]:
    """Starts processes that have two threads and in which nobody decided how they wait."""
    processes = WarmProcesses({**without_decisions(os.environ), "OMP_NUM_THREADS": "2"})
    yield processes
    processes.close()


@pytest.fixture
def run(undecided: WarmProcesses) -> Callable[..., str]:
    """What such a process prints."""

    def printed(program: str, **environment: str) -> str:
        clean = {**without_decisions(os.environ), "OMP_NUM_THREADS": "2", **environment}
        done = undecided.run(HELPERS + textwrap.dedent(program), env=clean)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return printed


@pytest.mark.alone
def test_the_policy_does_it_for_mixed_pools_only(run: Any) -> None:
    alone, mixed, after = run(
        """
        owner = Owner()
        threads_module.cores = lambda: 2
        assert sharing.use(owner, ["torch"]).outcome == "alone"
        alone = idle_ticks()
        assert sharing.use(owner, ["onnxruntime"]).outcome == "quiet"
        assert torch.get_num_threads() == 2
        mixed = idle_ticks()
        del owner
        gc.collect()
        time.sleep(0.3)
        print(alone, mixed, idle_ticks())
        """
    ).split()
    assert int(alone) >= 8 and int(after) >= 8 and int(mixed) <= 2, (alone, mixed, after)


@pytest.mark.alone
def test_the_environment_makes_threads_sleep() -> None:
    variables = {**without_decisions(os.environ), "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}
    program = textwrap.dedent(
        """
        threads_module.cores = lambda: 2
        owner = Owner()
        print(idle_ticks(), sharing.use(owner, ["onnxruntime"]).outcome)
        """
    )
    command = [sys.executable, "-c", HELPERS + program]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=120, check=True)
    ticks, outcome = done.stdout.split()
    assert int(ticks) <= 2 and outcome == "environment"


RESTING = """
    threads_module.cores = lambda: 2
    torch.add(value, value, out=out)
    others = [task for task in os.listdir("/proc/self/task") if int(task) != os.getpid()]
    def running_s():
        return 1e-9 * sum(int(open(f"/proc/self/task/{task}/schedstat").read().split()[0]) for task in others)
    spent = [0.0]
    def sleep(inputs):
        before = running_s()
        time.sleep(inputs[0])
        spent[0] += running_s() - before
        return [torch.add(value, value)]
    def waiting_s(code):
        spent[0] = 0.0
        for _ in range(60):
            torch.add(value, value, out=out)
            code([0.01])
        return spent[0]
"""


def test_torchs_threads_rest_while_code_of_another_pool_runs_and_wait_as_always_before_and_after(run: Any) -> None:
    plain, parking, after, right = run(
        RESTING
        + """
    parked = sharing.parked("onnxruntime", sleep)
    assert parked is not sleep and sharing.parked("torch", sleep) is sleep
    threads = len(os.listdir("/proc/self/task"))
    found = [waiting_s(sleep), waiting_s(parked), waiting_s(sleep)]
    assert len(os.listdir("/proc/self/task")) == threads and torch.get_num_threads() == 2
    print(*found, torch.equal(parked([0.0])[0], value * 2))
        """
    ).split()
    assert float(parking) < 0.2 * min(float(plain), float(after)), (plain, parking, after)
    assert right == "True"


def test_threads_that_rested_work_again_whatever_the_code_did(run: Any) -> None:
    printed = run(
        RESTING
        + """
    import threading
    def raises(inputs):
        raise ValueError("of the code")
    def nested(inputs):
        return sharing.parked("openvino", sleep)(inputs)
    failing, inner = (sharing.parked("onnxruntime", code) for code in (raises, nested))
    problems = []
    def work():
        for _ in range(30):
            try:
                failing([0.0])
            except ValueError:
                pass
            if not torch.equal(inner([0.0])[0], value * 2) or not torch.equal(value + value, value * 2):
                problems.append(threading.current_thread().name)
    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers: worker.start()
    work()
    for worker in workers: worker.join(60)
    doubled = sharing.parked("onnxruntime", lambda inputs: [inputs[0] + inputs[0]])
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        os._exit(0 if doubled([value])[0][0] == 2.0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    print(problems, any(worker.is_alive() for worker in workers))
        """
    )
    assert printed == "[] False"


def test_forked_workers_and_the_end_of_the_process_do_not_hang(run: Any) -> None:
    printed = run(
        """
        threads_module.cores = lambda: 2
        owner = Owner()
        assert sharing.use(owner, ["onnxruntime"]).outcome == "quiet"
        rows = torch.arange(24.0).reshape(12, 2)
        loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(rows), batch_size=4, num_workers=2, multiprocessing_context="fork"
        )
        assert torch.equal(torch.cat([batch for (batch,) in loader]), rows)
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)
            right = float(torch.ones(1 << 17).sum()) == float(1 << 17)
            told = sharing.use(owner, ["openvino"]).outcome
            del owner
            gc.collect()
            os._exit(0 if right and told == "enough cores" and not sharing.active else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert torch.equal(torch.add(value, value), torch.full_like(value, 2.0))
        print("done")
        """
    )
    assert printed == "done"


def test_generated_kernels_and_torch_share_one_runtime(run: Any, tmp_path: Path) -> None:
    """Two copies of a runtime would be two pools."""
    printed = run(
        """
        from mixbackend.backends.codegen.backend import CodegenBackend
        from mixbackend.graph.trace import trace_region
        inputs = [torch.ones(512, 512)]
        compiled = CodegenBackend().compile(trace_region(lambda x: torch.softmax(x, -1) + 1, inputs))
        assert torch.allclose(compiled.run(inputs)[0], torch.softmax(inputs[0], -1) + 1)
        print(len(loaded_runtimes()), torch.__config__.parallel_info().count("OpenMP") > 0)
        """,
        XDG_CACHE_HOME=str(tmp_path),
    )
    assert printed == "1 True"


TWO_MODELS = """
    import threading
    import mixbackend
    threads_module.cores = lambda: 2
    torch.manual_seed(0)
    models = [torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.GELU(), torch.nn.LayerNorm(96)) for _ in range(2)]
    backend = mixbackend.auto({"backends": ["onnxruntime", "codegen", "eager"], "cache": {"dir": os.environ["CACHE"]},
                               "rules": [{"match": {"op": "aten.addmm"}, "require": "onnxruntime"},
                                         {"match": {"op": "aten.native_layer_norm"}, "require": "codegen"}]})
    inputs = [torch.randn(32, 64), torch.randn(48, 64)]
    compiled = [torch.compile(model, backend=backend) for model in models]
    problems = []

    def work(index):
        with torch.no_grad():
            wanted = models[index](inputs[index])
            for _ in range(40):
                if not torch.allclose(compiled[index](inputs[index]), wanted, atol=1e-5):
                    problems.append(index)

    workers = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for worker in workers: worker.start()
    for worker in workers: worker.join(90)
    assert not any(worker.is_alive() for worker in workers)
    owners = {region.backend for graph in backend.report().graphs for region in graph.plan.regions}
    assert {"onnxruntime", "codegen"} <= owners, owners
    assert any("sleep while a region runs" in event.detail for event in backend.report().events)
    print(problems, sharing.active)
"""


def test_two_models_in_two_threads_mix_pools_and_are_right(run: Any, tmp_path: Path) -> None:
    printed = run(TWO_MODELS, CACHE=str(tmp_path / "cache"), XDG_CACHE_HOME=str(tmp_path), MIXBACKEND_CALIBRATE="0")
    assert printed == "[] False"


def test_the_runtime_is_found_by_its_path() -> None:
    import torch

    assert torch.backends.openmp.is_available()
    assert all(Path(path).is_file() for path in loaded_runtimes()) and loaded_runtimes()
