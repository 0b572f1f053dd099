"""``Config``: the configuration as one frozen value.

Place: made by ``validate``, which ``load`` calls; read by the pipeline, never changed. Equal configurations are equal
values with equal hashes, so ``auto()`` can give one object for them.
Invariants: what spans several keys is held by ``checks.find_problems``, on every way in.
Units: seconds, gigabytes (10^9 bytes).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, ValidationError, ValidationInfo, model_validator

from mixbackend import registry
from mixbackend.configuration.checks import find_problems, unknown_backends
from mixbackend.configuration.document import Document, read_mapping
from mixbackend.configuration.fields import CountByName, Flag, FrozenModel, NotNegative, Positive, Text
from mixbackend.configuration.options import ORIGIN, with_overrides
from mixbackend.configuration.problems import ConfigurationProblemsError, explain_pydantic, format_path
from mixbackend.configuration.rules import Rule
from mixbackend.contracts.preferences import Preference
from mixbackend.host.behind_budget import Limits
from mixbackend.host.openmp import cores

ALREADY_CHECKED = "already_checked"
"""Key of the validation context by which ``validate`` says that it collects the problems across keys itself."""


def _off(value: object) -> object:
    # YAML 1.1 readers turn a bare `off` into False.
    return "off" if value is False else value


def _no_flag(value: object) -> object:
    # True equals 1, but is not meant as a version.
    return str(value) if isinstance(value, bool) else value


def _off_as_none(value: object) -> object:
    if value is None:
        raise ValueError("null says nothing; write off, or leave the key out")
    return None if _off(value) == "off" else value


def _none_as_off(value: BackgroundConfig | None) -> object:
    return "off" if value is None else value


def _offer_off(schema: dict[str, Any]) -> None:
    schema["anyOf"] = [{"const": "off"} if kind == {"type": "null"} else kind for kind in schema["anyOf"]]


class SearchConfig(FrozenModel):
    """How placements are found."""

    mode: Literal["estimate", "measure"] = "estimate"
    """`estimate` places by estimated costs, and as was decided before where a graph was measured. `measure` runs the
    best plan, every single backend and other mixtures against one another at the first call of a graph, in processes of
    their own, and remembers the fastest. `mode="max-autotune"` of torch.compile means `measure`."""

    budget_s: Positive = 120.0
    """Seconds that `measure` may take for one graph."""

    first_call_gpu_s: NotNegative = 60.0
    """Seconds that `measure` may take at the first call of a graph on a GPU (inference, forward and backward each), to
    compile others as well and to keep the fastest; 0 for never. What is found is remembered."""


class VerifyConfig(FrozenModel):
    """When the outputs of regions are held against eager's."""

    when: Annotated[Literal["off", "first_call", "sampled", "always"], BeforeValidator(_off)] = "first_call"
    """`off`; `first_call` of each region; `sampled` calls; `always`."""

    factor: Positive = 3.0
    """How many times eager's own distance from a float64 reference a result may be away from it."""


class BackgroundConfig(FrozenModel):
    """What may be prepared for later calls by other processes, behind the calls."""

    budget_s: Positive = 120.0
    """Processor seconds that one process may have behind in all, beside those of warm-ups."""

    cores: Annotated[float, Field(strict=True, gt=0.0, le=1.0)] = 0.1
    """Share of the cores that is used behind at most, by all of its workers together, and half of what the process
    itself leaves idle; in `warm_up` half of the cores, if that is more."""

    memory_gb: Positive | None = None
    """Memory that they may hold together; default, and at most, a quarter of what is free when they start."""


class CacheConfig(FrozenModel):
    """Where compiled regions and measurements are kept."""

    dir: Text | None = None
    """Local folder; default is the user's cache folder."""

    remote: Text | None = None
    """fsspec URL of a shared store behind the local one: `s3://bucket/mixbackend`."""

    max_gb: Positive = 10.0
    """Size above which the local folder loses its least recently used entries."""


class LockConfig(FrozenModel):
    """Plans that were reviewed, in a file that `mixbackend tune MODEL --lock FILE` writes."""

    path: Text | None = None
    """The lock file. A graph that is in it is placed as it says, without search or measurement; one that is not is
    placed as usual, and the report says so."""

    frozen: Flag = False
    """Whether it is an error if a graph is not in the file, or if versions, device, threads, backends or what backends
    take are not as the file says."""


class Config(FrozenModel):
    """What mixbackend should do. Every key may be left out."""

    version: Annotated[Literal[1], BeforeValidator(_no_flag)] = 1
    """Version of this schema."""

    backends: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    """Backends that may be used; the order breaks ties. Default: all that are available. `eager` is always there, last
    if it is not named, and runs what no other takes."""

    rules: tuple[Rule, ...] = ()
    """Wishes about parts of the model. The first rule that matches an op decides."""

    objective: Literal["latency", "memory", "compile_time"] = Field(
        default="latency", json_schema_extra={"enum": ["latency", "compile_time"]}
    )
    """What placement minimises. `latency`: seconds of a call. `compile_time`: seconds of a call and a tenth of those of
    compiling, for what is called a few times only; it does not go with `search.mode: measure`. `memory` is not built
    yet."""

    search: SearchConfig = SearchConfig()
    """How placements are found."""

    background: Annotated[
        BackgroundConfig | None, BeforeValidator(_off_as_none), PlainSerializer(_none_as_off, when_used="always")
    ] = Field(default=BackgroundConfig(), json_schema_extra=_offer_off)
    """What may be prepared for later calls by other processes, behind the calls, once a graph's calls came 20 times and
    took two seconds; `off` for nothing. The environment variable MIXBACKEND_BACKGROUND=off says so for a process."""

    select: Annotated[Literal["auto", "off"], BeforeValidator(_off)] = "auto"
    """Whether plans by estimates are held against others by running them: on processors in your own calls,
    elsewhere at the first call. `off`: the plan by estimates, or what was decided before, runs; so does
    `MIXBACKEND_SELECT=off` in the environment for all of a process. Under deterministic algorithms and in jobs of
    several ranks, which must all run one program, nothing is compared either."""

    weights: Literal["auto", "live", "frozen"] = "auto"
    """How regions take weights. `live` passes them at every call, so that every update is seen. `auto` makes them
    constants of the compiled code in inference (packed, folded, converted once), watches them for changes, and goes
    back to `live` where they change often. `frozen` is your word that nothing edits them unseen (through `.data`, a
    numpy alias): their content is not looked at, and the model's own copies move into a file of the cache folder, so
    that memory holds weights once."""

    verify: VerifyConfig = VerifyConfig()
    """When the outputs of regions are held against eager's."""

    on_failure: Literal["repair", "eager", "raise"] = "repair"
    """When a backend fails on a region: `repair` places that neighbourhood anew, `eager` runs it with eager, `raise`
    raises an error that names backend, region, ops and source line."""

    min_region: CountByName = ()
    """For each backend named, the least number of ops that a region of its must have: `{onnxruntime: 5}`."""

    cache: CacheConfig = CacheConfig()
    """Where compiled regions and measurements are kept."""

    lock: LockConfig = LockConfig()
    """Plans that were reviewed, in a file."""

    @model_validator(mode="after")
    def _check_across_keys(self, info: ValidationInfo) -> Config:
        if isinstance(info.context, Mapping) and info.context.get(ALREADY_CHECKED):
            return self
        found = find_problems(self.model_dump())
        if found:
            raise ValueError("; ".join(f"{format_path(path)}: {message}" for path, message in found))
        return self

    def preferences(self) -> tuple[Preference, ...]:
        """The rules as the planner reads them, in order."""
        return tuple(rule.preference() for rule in self.rules)

    def background_limits(self) -> Limits | None:
        """What this process may have behind, ``None`` for nothing."""
        allowed = self.background
        if allowed is None:
            return None
        return Limits(allowed.budget_s, allowed.cores, cores(), int(1e9 * (allowed.memory_gb or 0)))

    def required_backends(self) -> frozenset[str]:
        """Backends that some rule requires: they must be usable."""
        return frozenset(rule.require for rule in self.rules if rule.require is not None)

    def with_options(self, options: Mapping[str, Any]) -> Config:
        """This configuration with some keys replaced, as by ``torch.compile(options={...})``.

        Args:
            options: nested (``{"verify": {"when": "off"}}``) or flat (``{"verify.when": "off"}``); mappings are merged
                key by key, everything else, lists included, is replaced.

        Raises:
            ConfigurationProblemsError: all that is wrong with the result.
        """
        merged = with_overrides(self.model_dump(mode="python", exclude_unset=True), options)
        changed = validate(read_mapping(merged, ORIGIN))
        kept = {rule: rule.origin for rule in self.rules}
        rules = tuple(rule.at(kept.get(rule, rule.origin)) for rule in changed.rules)
        return changed.model_copy(update={"rules": rules})


def validate(document: Document, known_backends: Collection[str] | None = None) -> Config:
    """Turn a document into a ``Config``.

    Raises:
        ConfigurationProblemsError: all of them.
    """
    known = registry.names() if known_backends is None else known_backends
    found = [(path, message, False) for path, message in find_problems(document.data)]
    found += [(path, message, path[0] == "min_region") for path, message in unknown_backends(document.data, known)]
    config = None
    if document.data is not None:
        try:
            config = Config.model_validate(document.data, context={ALREADY_CHECKED: True})
        except ValidationError as error:
            for entry in error.errors(include_url=False):
                path, message = explain_pydantic(entry, Config)
                found.append((path, message, entry["type"] == "extra_forbidden"))
    said = [problem.path for problem in document.problems]
    new = [entry for entry in found if not any(entry[0][: len(path)] == path for path in said)]
    problems = document.problems + [document.problem(path, text, at_key) for path, text, at_key in new]
    if problems or config is None:
        raise ConfigurationProblemsError(problems)
    rules = tuple(rule.at(_origin(document, index)) for index, rule in enumerate(config.rules))
    return config.model_copy(update={"rules": rules})


def _origin(document: Document, index: int) -> str:
    line, _ = document.values.get(("rules", index), (0, 0))
    return f"{document.origin}:{line}" if line else f"{document.origin}: rules[{index}]"
