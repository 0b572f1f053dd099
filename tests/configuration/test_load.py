"""Every way into a configuration, and everything that can be wrong with one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import draws

from mixbackend.configuration import Config, ConfigurationProblemsError, Rule, load_config
from mixbackend.contracts import ConfigurationError, NodeMatch, Preference

pytestmark = pytest.mark.smoke

KNOWN = ("eager", "onnxruntime", "inductor")
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_text(text: str) -> Path:
        path = tmp_path / "prefs.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_text


def problems_of(source: Any) -> list[tuple[int, int, str]]:
    with pytest.raises(ConfigurationProblemsError) as caught:
        load_config(source, KNOWN)
    return [(problem.line, problem.column, str(problem).split(": ", 1)[1]) for problem in caught.value.problems]


def test_nothing_gives_the_defaults() -> None:
    config = load_config(None)
    assert config == Config() and hash(config) == hash(Config())
    assert config.backends is None and config.weights == "auto" and config.verify.when == "first_call"
    assert config.preferences() == () and config.required_backends() == frozenset()
    assert config.min_region == ()


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "{}\n"])
def test_an_empty_file_gives_the_defaults(write: Write, text: str) -> None:
    assert load_config(write(text), KNOWN) == Config()


FULL = """\
version: 1
backends: [onnxruntime, inductor, eager]
rules:
  - match: {module: "encoder.*.attention", phase: inference}
    prefer: onnxruntime
    factor: 0.5
  - match: {op: aten.convolution, dtype: [float16, bfloat16], device: cuda}
    require: inductor
  - match: {module_class: Embed*, pattern: silu}
    forbid: inductor
objective: latency
search: {mode: estimate, budget_s: 120}
weights: live
verify: {when: off, factor: 2}
on_failure: raise
min_region: {onnxruntime: 5, inductor: 2}
cache: {dir: null, remote: "memory://shared", max_gb: 2.5}
lock: {path: null, frozen: false}
"""


def test_every_key_reaches_its_place(write: Write) -> None:
    path = write(FULL)
    config = load_config(path, KNOWN)
    assert config.backends == ("onnxruntime", "inductor", "eager")
    assert (config.verify.when, config.verify.factor, config.on_failure) == ("off", 2.0, "raise")
    assert config.min_region == (("inductor", 2), ("onnxruntime", 5))
    assert config.cache.remote == "memory://shared" and config.cache.max_gb == 2.5
    assert config.required_backends() == {"inductor"}
    assert config.preferences() == (
        Preference(
            NodeMatch(module="encoder.*.attention", phase="inference"), "prefer", "onnxruntime", 0.5, f"{path}:4"
        ),
        Preference(
            NodeMatch(op="aten.convolution", dtypes=("float16", "bfloat16"), device="cuda"),
            "require",
            "inductor",
            origin=f"{path}:7",
        ),
        Preference(NodeMatch(module_class="Embed*", pattern="silu"), "forbid", "inductor", origin=f"{path}:9"),
    )


def test_equal_content_is_an_equal_value_wherever_it_comes_from(write: Write) -> None:
    from_file = load_config(write(FULL), KNOWN)
    from_text_path = load_config(str(write("# moved\n\n" + FULL)), KNOWN)
    from_mapping = load_config(from_file.model_dump(), KNOWN)
    assert from_file == from_text_path == from_mapping
    assert len({from_file, from_text_path, from_mapping, load_config(from_file, KNOWN)}) == 1
    assert from_file != Config() and from_file != "prefs.yaml"


def test_a_config_is_frozen() -> None:
    with pytest.raises(Exception, match="frozen"):
        load_config(None).weights = "live"  # type: ignore[misc]


def test_all_problems_at_once_with_their_places(write: Write) -> None:
    text = """\
version: 2
backends: [onnxruntim]
ruls: []
rules:
  - match: {op: 3, dtyp: float16, phase: infernce}
    prefer: eager
    require: eager
  - match: {dtype: half, device: "cuda:0"}
    forbid: egaer
    factor: 0.5
verify: first_call
min_region: {tensorrt: 0}
cache: {max_gb: -1}
lock: {frozen: yes}
"""
    assert problems_of(write(text)) == [
        (1, 10, "version: should be 1; got 2"),
        (2, 12, "backends[0]: no backend is called 'onnxruntim'; did you mean 'onnxruntime'?"),
        (3, 1, "ruls: unknown key; did you mean 'rules'?"),
        (5, 5, "rules[0]: a rule needs exactly one of prefer, require and forbid; it has prefer and require"),
        (5, 17, "rules[0].match.op: should be a valid string; got 3"),
        (5, 20, "rules[0].match.dtyp: unknown key; did you mean 'dtype'?"),
        (
            5,
            42,
            "rules[0].match.phase: should be 'inference', 'forward' or 'backward'; got 'infernce'; "
            "did you mean 'inference'?",
        ),
        (8, 20, "rules[1].match.dtype[0]: 'half' is not a dtype; write 'float16'"),
        (
            8,
            34,
            "rules[1].match.device: 'cuda:0' names one device; rules are about device types: write 'cuda'",
        ),
        (9, 13, "rules[1].forbid: no backend is called 'egaer'; did you mean 'eager'?"),
        (10, 13, "rules[1].factor: goes with prefer only: require and forbid are absolute"),
        (11, 9, "verify: should be a mapping with keys from when, factor; got 'first_call'"),
        (
            12,
            14,
            "min_region.tensorrt: no backend is called 'tensorrt'; there is 'eager', 'inductor', 'onnxruntime'",
        ),
        (12, 24, "min_region.tensorrt: should be greater than or equal to 1; got 0"),
        (13, 17, "cache.max_gb: should be greater than 0; got -1"),
        (14, 16, "lock.frozen: should be a valid boolean; got 'yes'"),
    ]


def test_measuring_does_not_go_with_a_quick_start(write: Write) -> None:
    text = "{objective: compile_time, search: {mode: measure}}"
    ((line, column, found),) = problems_of(write(text + "\n"))
    assert (line, column) == (1, 13) and "compiles many candidates" in found
    assert load_config(write("objective: compile_time\n"), KNOWN).objective == "compile_time"


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("objective: memory", 1, 12, "'memory' is not built yet"),
    ],
)
def test_what_is_not_built_is_refused(write: Write, text: str, line: int, column: int, message: str) -> None:
    ((found_line, found_column, found),) = problems_of(write(text + "\n"))
    assert (found_line, found_column) == (line, column) and message in found
    with pytest.raises(ValueError, match="not built yet"):
        Config(**_keywords(text))


@pytest.mark.parametrize("text", ["lock: {frozen: true}", "lock: {path: null, frozen: true}"])
def test_nothing_can_be_frozen_without_a_file(write: Write, text: str) -> None:
    ((line, _, found),) = problems_of(write(text + "\n"))
    assert line == 1 and found == "lock.frozen: needs the file that is frozen; write lock.path too"
    with pytest.raises(ValueError, match=r"write lock\.path too"):
        Config(**_keywords(text))


def test_a_lock_file(write: Write) -> None:
    lock = load_config(write("lock: {path: plans/mixbackend.lock.yaml, frozen: true}\n"), KNOWN).lock
    assert (lock.path, lock.frozen) == ("plans/mixbackend.lock.yaml", True)
    assert load_config(write("lock: {path: a.yaml}\n"), KNOWN).lock.frozen is False
    ((_, _, found),) = problems_of(write('lock: {path: ""}\n'))
    assert found.startswith("lock.path: String should have at least 1 character")


def _keywords(text: str) -> dict[str, Any]:
    from ruamel.yaml import YAML

    return dict(YAML(typ="safe").load(text))


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("version: 1\nbackends: [eager\nrules: []\n", 3, 6),
        ("version: 1\n\tbackends: x\n", 2, 1),
        ("a: 1\na: 2\n", 2, 1),
        ("backends: {eager\n", 2, 1),
        ("version: 1\n---\nversion: 1\n", 2, 1),
        ("rules: *nowhere\n", 1, 8),
        ("verify: 'off\n", 2, 1),
    ],
)
def test_a_syntax_error_has_its_place(write: Write, text: str, line: int, column: int) -> None:
    ((found_line, found_column, message),) = problems_of(write(text))
    assert (found_line, found_column) == (line, column) and "not valid YAML" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- eager\n", "should be a mapping of keys"),
        ("eager\n", "should be a mapping of keys"),
        ("1: 2\n", "keys are text; 1 is not"),
        ("cache: {dir: !!python/object/apply:os.system [echo]}\n", "tags such as"),
        ("cache: !thing {dir: x}\n", "tags such as !thing"),
        ("version: true\n", "should be 1"),
        ("backends: []\n", "at least 1 item"),
        ("backends: eager\n", "backends: should be a valid tuple"),
        ("backends: [eager, 3]\n", "backends[1]: should be a valid string"),
        ("rules: [eager]\n", "rules[0]: should be a mapping with keys from match, prefer"),
        ("rules: [{prefer: eager}]\n", "rules[0].match: is missing"),
        ("rules: [{match: {}}]\n", "exactly one of prefer, require and forbid; it has none"),
        ("rules: [{match: {}, prefer: eager, factor: 0}]\n", "should be greater than 0"),
        ("rules: [{match: {}, prefer: eager, factor: .inf}]\n", "should be a finite number"),
        ("rules: [{match: {device: quantum}, prefer: eager}]\n", "'quantum' is not a device type"),
        ("rules: [{match: {dtype: floot32}, prefer: eager}]\n", "did you mean 'float32'?"),
        ("backends: [eager]\nrules: [{match: {}, require: inductor}]\n", "which backends leaves out"),
        ('verify: {factor: "3"}\n', "should be a valid number"),
        ("min_region: {eager: 1.5}\n", "should be a valid integer"),
        ("cache: 3\n", "should be a mapping with keys from dir, remote, max_gb"),
    ],
)
def test_one_mistake_is_one_problem(write: Write, text: str, message: str) -> None:
    ((line, column, found),) = problems_of(write(text))
    assert message in found and line >= 1 and column >= 1


def test_eager_may_be_required_without_being_listed(write: Write) -> None:
    text = "backends: [onnxruntime]\nrules: [{match: {}, require: eager}]\n"
    assert load_config(write(text), KNOWN).required_backends() == {"eager"}


def test_many_aliases_do_not_fill_the_memory(write: Write) -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{b}: &{b} [{', '.join(['*' + a] * 9)}]" for a, b in zip("abcdefghi", "bcdefghij", strict=True)]
    ((_, _, message),) = problems_of(write("\n".join(lines)))
    assert "more than 100000 values" in message


def test_a_mapping_that_contains_itself() -> None:
    data: dict[str, Any] = {}
    data["verify"] = {"when": data}
    ((_, _, message),) = problems_of(data)
    assert message == "verify.when: refers to itself"


def test_anchors_and_merge_keys_work(write: Write) -> None:
    text = """\
rules:
  - &base {match: {op: aten.mm}, prefer: eager}
  - <<: *base
    factor: 0.3
"""
    first, second = load_config(write(text), KNOWN).rules
    assert (first.factor, second.factor, second.prefer) == (None, 0.3, "eager")


@pytest.mark.parametrize("make", [lambda path: path / "missing.yaml", lambda path: path])
def test_a_file_that_cannot_be_read(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_config(make(tmp_path), KNOWN)


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "prefs.yaml").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_config(tmp_path / "prefs.yaml", KNOWN)


def test_a_mapping_gives_key_paths_instead_of_lines() -> None:
    with pytest.raises(ConfigurationProblemsError) as caught:
        load_config({"rules": [{"match": {"opp": "x"}, "prefer": "eager"}]}, KNOWN)
    (problem,) = caught.value.problems
    assert str(problem) == "the configuration: rules[0].match.opp: unknown key; did you mean 'op'?"
    assert problem.to_dict()["line"] == 0


def test_a_ready_config_is_held_against_the_registry() -> None:
    ready = Config(backends=["onnxrutime"])
    with pytest.raises(ConfigurationError, match="did you mean 'onnxruntime'"):
        load_config(ready, KNOWN)


def test_a_mapping_may_hold_ready_parts() -> None:
    rule = Rule(match={"op": "aten.mm"}, prefer="eager")
    assert load_config({"rules": [rule]}, KNOWN).rules == (rule,)
    with pytest.raises(ConfigurationError, match="exactly one of"):
        load_config({"rules": [Rule(match={})]}, KNOWN)


def test_another_type_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="not a int"):
        load_config(3)  # type: ignore[arg-type]


def test_false_means_off() -> None:
    assert load_config({"verify": {"when": False}}, KNOWN).verify.when == "off"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_valid_and_commented(path: Path) -> None:
    config = load_config(path, KNOWN)
    assert config != Config() and path.read_text().startswith("# ")


def test_there_are_three_examples() -> None:
    assert {"latency", "pin_attention", "strict_ci"} <= {path.stem for path in EXAMPLES}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["eager", "off", "x", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["match", "prefer", "require", "op", "when", "mode", "dtype", "x"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)
KEYS = [*Config.model_fields, "unknown"]


@settings(derandomize=True, deadline=None, max_examples=draws(70, 200))
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4))
def test_any_data_gives_a_config_or_the_one_error(data: dict[str, Any]) -> None:
    try:
        config = load_config(data, KNOWN)
    except ConfigurationProblemsError as error:
        assert error.problems
    else:
        hash(config)
        config.preferences()
        assert load_config(config.model_dump(), KNOWN) == config


def test_what_may_be_behind() -> None:
    limits = load_config({"background": {"cores": 0.2, "memory_gb": 2.0}}).background_limits()
    assert limits is not None
    assert (limits.budget_s, limits.share, limits.memory_bytes) == (120.0, 0.2, 2_000_000_000)
    assert Config().background_limits() is not None


@pytest.mark.parametrize("off", ["off", False])
def test_nothing_is_behind_where_it_is_off(off: Any, write: Write) -> None:
    config = load_config({"background": off}, KNOWN)
    assert config.background_limits() is None
    assert config == load_config(config.model_dump(), KNOWN) == load_config(write("background: off\n"), KNOWN)
    assert load_config(config) is config
    back = config.with_options({"background.cores": 0.5})
    assert back.background is not None and back.background.cores == 0.5
    assert back.with_options({"background": "off"}).background_limits() is None


def test_what_is_wrong_with_the_work_behind() -> None:
    found = problems_of({"background": {"core": 0.1, "budget_s": 0, "cores": 1.5, "memory_gb": "2"}})
    assert len(found) == 4 and "did you mean 'cores'" in " ".join(text for _, _, text in found)
    assert "write off" in problems_of({"background": None})[0][2]
    assert "mapping with keys from budget_s" in problems_of({"background": "on"})[0][2]
