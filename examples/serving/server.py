"""A server of embeddings: requests that wait together become one batch of whatever size; metrics for Prometheus.

Started by ``uvicorn server:app`` with ``MODEL_FOLDER``, ``PEER`` (default mixbackend), ``MIXBACKEND_CACHE`` and
``PROMETHEUS_MULTIPROC_DIR`` in its environment, once for each worker: all map one package and share the cache folder.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import torch
from encoder import LONGEST, MOST_ROWS, WORDS, Engine, batch, engine
from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from pydantic import BaseModel, Field

WARM_ROWS, WARM_LENGTHS = (1, 2, 3, 8, MOST_ROWS), (4, 16, 48, LONGEST)
SAMPLED = 200
"""One batch of so many is run under torch's profiler, which names the regions."""

SECONDS = Histogram("request_seconds", "From a request to its answer.", buckets=[0.001 * 1.5**k for k in range(20)])
ROWS = Histogram("batch_rows", "Requests in one batch.", buckets=[1, 2, 4, 8, 16])
REGION_SECONDS = Histogram(
    *("mixbackend_region_seconds", "Of a region, in batches that were sampled.", ("region", "backend")),
    buckets=[0.0001 * 2**k for k in range(14)],
)
REGION_NODES = Gauge(
    *("mixbackend_region_nodes", "Operators in a region.", ("graph", "region", "backend")), multiprocess_mode="max"
)
READY = Gauge("workers_ready", "Workers that are warm.", multiprocess_mode="livesum")
EVENTS = Counter("mixbackend_events", "What the report tells: repairs, fallbacks, differences.", ("kind",))


class Sentence(BaseModel):
    """A request: numbers of words."""

    words: list[int] = Field(min_length=4, max_length=LONGEST)


class Batcher:
    """Runs what has come while the batch before ran, in a thread, so that requests are taken meanwhile."""

    def __init__(self, run: Engine) -> None:
        self.run = run
        self.thread = ThreadPoolExecutor(1)
        self._waiting: asyncio.Queue[tuple[list[int], asyncio.Future[list[float]]]] = asyncio.Queue()
        self._count = 0

    async def ask(self, words: list[int]) -> list[float]:
        """The vector of a sentence."""
        answer: asyncio.Future[list[float]] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait((words, answer))
        return await answer

    async def serve(self) -> None:
        """Until it is cancelled."""
        while True:
            taken = [await self._waiting.get()]
            while len(taken) < MOST_ROWS and not self._waiting.empty():
                taken.append(self._waiting.get_nowait())
            ROWS.observe(len(taken))
            work = self._compute, [words for words, _ in taken]
            try:
                vectors = await asyncio.get_running_loop().run_in_executor(self.thread, *work)
            except Exception as error:
                for _, answer in taken:
                    answer.set_exception(error)
                continue
            for (_, answer), vector in zip(taken, vectors, strict=True):
                if not answer.cancelled():
                    answer.set_result(vector)

    def _compute(self, sentences: Sequence[list[int]]) -> list[list[float]]:
        lengths = torch.tensor([len(words) for words in sentences])
        words = torch.zeros(len(sentences), int(lengths.max()), dtype=torch.int64)
        for row, sentence in enumerate(sentences):
            words[row, : len(sentence)] = torch.tensor(sentence).remainder_(WORDS)
        mask = torch.arange(words.shape[1]) < lengths[:, None]
        self._count += 1
        with torch.inference_mode():
            return (self.run if self._count % SAMPLED else self.sampled)(words, mask).tolist()

    def sampled(self, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            found = self.run(words, mask)
        for event in profile.events():
            graph, separator, rest = event.name.removeprefix("mixbackend ").partition("/")
            region, on, backend = rest.partition(" on ")
            if separator and on:
                REGION_SECONDS.labels(f"{graph}/{region}", backend).observe(event.cpu_time_total * 1e-6)
        return found


def warm_up(batcher: Batcher) -> None:
    """Run every kind of size, where requests will run: programs of ranges are loaded, and what is new is checked."""
    run = batcher.run
    with torch.inference_mode():
        for rows in WARM_ROWS:
            for length in WARM_LENGTHS:
                run(*batch(rows, length))
        batcher.sampled(*batch(2, 48))  # the profiler's own first time takes long
    for graph in run.report().to_dict()["graphs"] if hasattr(run, "report") else ():
        for region in graph["regions"]:
            REGION_NODES.labels(graph["id"], region["id"], region["backend"]).set(len(region["nodes"]))
    for event in run.report().events if hasattr(run, "report") else ():
        EVENTS.labels(event.kind).inc()


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.batcher = batcher = Batcher(
        engine(os.environ.get("PEER", "mixbackend"), Path(os.environ["MODEL_FOLDER"]))
    )
    await asyncio.get_running_loop().run_in_executor(batcher.thread, warm_up, batcher)
    READY.set(1)
    serving = asyncio.create_task(batcher.serve())
    yield
    serving.cancel()


app = FastAPI(lifespan=_lifespan)


@app.post("/embed")
async def embed(sentence: Sentence) -> Response:
    """The vector of a sentence, as JSON."""
    begin = time.perf_counter()
    vector = await app.state.batcher.ask(sentence.words)
    SECONDS.observe(time.perf_counter() - begin)
    return Response(f'{{"embedding":{vector}}}', media_type="application/json")


@app.get("/metrics")
def metrics() -> Response:
    """Of all workers together."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
