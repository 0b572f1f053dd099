"""Starts the server, loads it for a while, and prints percentiles: of the package, and of peers in the same server.

``python load.py --peer mixbackend onnxruntime inductor``: each client asks for one random sentence after another.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from encoder import PEERS, WORDS

HERE = Path(__file__).parent
STARTS_WITHIN_S = 300.0
LENGTHS = (16, 64)


async def ask(port: int, words: list[int]) -> bool:
    """One request; whether it was answered well."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"words": words}).encode()
    head = f"POST /embed HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
    answer = await reader.read()
    writer.close()
    return answer.startswith(b"HTTP/1.1 200") and b"embedding" in answer and b"nan" not in answer


async def load(ports: Sequence[int], clients: int, seconds: float) -> tuple[list[float], int]:
    """Seconds of all requests in order, and how many failed; each goes to the worker that has fewest."""
    taken: list[float] = []
    under_way = dict.fromkeys(ports, 0)
    failed, end, chance = 0, time.perf_counter() + seconds, random.Random(0)

    async def client() -> None:
        nonlocal failed
        while time.perf_counter() < end:
            words = [chance.randrange(WORDS) for _ in range(chance.randint(*LENGTHS))]
            begin, port = time.perf_counter(), min(ports, key=under_way.__getitem__)
            under_way[port] += 1
            try:
                well = await ask(port, words)
            except OSError:
                well = False
            under_way[port] -= 1
            taken.append(time.perf_counter() - begin)
            failed += not well

    await asyncio.gather(*(client() for _ in range(clients)))
    return sorted(taken), failed


def free_port() -> int:
    """A port that is free."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def serving(peer: str, workers: int, folder: Path) -> Iterator[list[int]]:
    """Ports of that many workers, when all are warm."""
    shared = folder / f"metrics-{peer}"
    shared.mkdir()
    given = {"MODEL_FOLDER": str(folder), "PEER": peer, "PROMETHEUS_MULTIPROC_DIR": str(shared), **environment(folder)}
    command = [sys.executable, "-m", "uvicorn", "server:app", "--no-access-log", "--log-level", "warning"]
    ports = [free_port() for _ in range(workers)]
    started = [
        subprocess.Popen([*command, "--app-dir", str(HERE), "--port", str(port)], env={**os.environ, **given})
        for port in ports
    ]
    try:
        end = time.monotonic() + STARTS_WITHIN_S
        while f"workers_ready {workers}.0" not in metrics(ports[0]):
            if time.monotonic() > end or any(worker.poll() is not None for worker in started):
                raise SystemExit(f"the server of {peer} did not start")
            time.sleep(0.5)
        yield ports
    finally:
        for worker in started:
            worker.terminate()
        for worker in started:
            worker.wait(30)


def metrics(port: int) -> str:
    """What the server tells Prometheus; empty while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as found:
            return str(found.read().decode())
    except OSError:
        return ""


def environment(folder: Path) -> dict[str, str]:
    """Of the server and of preparing: one thread per worker, one cache for all."""
    cache = os.environ.get("MIXBACKEND_CACHE", str(folder / "cache"))
    return {"OMP_NUM_THREADS": "1", "MIXBACKEND_CACHE": cache, "KINETO_LOG_LEVEL": "99"}


def measure(peer: str, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One peer: start, warm up, load, stop."""
    begin = time.monotonic()
    with serving(peer, arguments.workers, folder) as ports:
        ready_s = time.monotonic() - begin
        asyncio.run(load(ports, arguments.clients, arguments.warm_s))
        taken, failed = asyncio.run(load(ports, arguments.clients, arguments.seconds))
        lines = metrics(ports[0]).splitlines() if arguments.metrics else []
    print(*(line for line in lines if line.startswith(("mixbackend_", "batch_")) and "bucket" not in line), sep="\n")
    p50, p99 = (1000 * taken[int(part * (len(taken) - 1))] for part in (0.5, 0.99))
    rate = len(taken) / arguments.seconds
    return {"peer": peer, "p50_ms": p50, "p99_ms": p99, "per_s": rate, "errors": failed, "ready_s": ready_s}


def main() -> int:
    """Measure the peers one after another; 1 if a request failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", nargs="+", choices=PEERS, default=["mixbackend"])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warm-s", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--metrics", action="store_true", help="print what the server tells of its regions")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, HERE / "encoder.py", name]
        subprocess.run(command, env={**os.environ, **environment(folder)}, check=True, stdout=subprocess.DEVNULL)
        found = [measure(peer, arguments, folder) for peer in arguments.peer]
    if arguments.json:
        print(json.dumps(found))
    else:
        print(f"{'peer':12} {'p50 ms':>8} {'p99 ms':>8} {'p99/p50':>8} {'per s':>7} {'errors':>7} {'ready s':>8}")
        for row in found:
            ratio = row["p99_ms"] / row["p50_ms"]
            print(
                "{peer:12} {p50_ms:8.1f} {p99_ms:8.1f} {0:8.2f} {per_s:7.1f} {errors:7d} {ready_s:8.1f}".format(
                    ratio, **row
                )
            )
    return int(any(row["errors"] for row in found))


if __name__ == "__main__":
    raise SystemExit(main())
