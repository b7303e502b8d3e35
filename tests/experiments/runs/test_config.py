"""Configurations: what is refused, with which words, and that every preset holds."""

import dataclasses
import inspect
import json
from typing import Literal

import pytest
import torch

from gradproj.adapters.torch import Projector
from gradproj.experiments import methods
from gradproj.experiments.common.errors import ConfigError
from gradproj.experiments.common.registry import nearest
from gradproj.experiments.common.schema import check, ranged, to_plain
from gradproj.experiments.common.tables import merge
from gradproj.experiments.data import Dataset
from gradproj.experiments.methods.config import VERSION
from gradproj.experiments.methods.setup import Setup
from gradproj.experiments.runs import presets
from gradproj.experiments.runs.jobs import make_jobs
from gradproj.experiments.runs.resolve import complete, parse_overrides, resolve
from gradproj.experiments.streams import benchmarks

BASE = {"benchmark": "permuted-digits", "method": "gem"}


@dataclasses.dataclass(frozen=True)
class Inner:
    size: int = ranged(1, low=1, high=9)


@dataclasses.dataclass(frozen=True)
class Outer:
    needed: str
    rate: float = 0.5
    on: bool = False
    either: int | float | Literal["all"] = 1
    maybe: int | None = None
    many: tuple[int, ...] = ()
    pair: tuple[int, float] = (1, 2.0)
    row: list[int] = dataclasses.field(default_factory=list)
    table: dict[str, int] = dataclasses.field(default_factory=dict)
    inner: Inner = dataclasses.field(default_factory=Inner)


def test_values_are_converted_and_kept():
    values = {
        "needed": "x",
        "rate": 1,
        "on": True,
        "either": 2,
        "maybe": None,
        "many": [1, 2],
        "pair": [3, 4],
        "row": [5, 6],
        "table": {"a": 1},
        "inner": {"size": 3},
    }
    out = check(Outer, values)
    assert out == Outer("x", 1.0, True, 2, None, (1, 2), (3, 4.0), [5, 6], {"a": 1}, Inner(3))
    assert isinstance(out.rate, float)
    assert isinstance(out.either, int)
    assert check(Outer, {"needed": "x", "either": 0.5}).either == 0.5
    assert check(Outer, {"needed": "x", "either": "all"}).either == "all"
    assert check(Outer, to_plain(out)) == out


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "key 'needed' is missing"),
        ({"needed": 3}, "needed=3 has the wrong type; use a string"),
        ({"needed": "x", "rat": 1}, "key 'rat' is not known; did you mean 'rate'?"),
        ({"needed": "x", "rate": "fast"}, "rate='fast' has the wrong type; use a number"),
        ({"needed": "x", "rate": True}, "rate=True has the wrong type"),
        ({"needed": "x", "on": 1}, "on=1 has the wrong type; use true or false"),
        ({"needed": "x", "either": "some"}, "use a whole number or a number or 'all'"),
        ({"needed": "x", "maybe": 1.5}, "maybe=1.5 has the wrong type; use a whole number or"),
        ({"needed": "x", "many": 1}, "many=1 must be a list"),
        ({"needed": "x", "many": [1, "a"]}, r"many\[1\]='a' has the wrong type"),
        ({"needed": "x", "pair": [1, 2, 3]}, r"pair=\[1, 2, 3\] has 3 values; it must have 2"),
        ({"needed": "x", "pair": ["a", 2]}, r"pair\[0\]='a' has the wrong type"),
        ({"needed": "x", "row": 1}, "row=1 must be a list"),
        ({"needed": "x", "row": [1.5]}, r"row\[0\]=1.5 has the wrong type; use a whole number"),
        ({"needed": "x", "table": 1}, "table=1 must be a table"),
        ({"needed": "x", "inner": 1}, "inner=1 must be a table"),
        ({"needed": "x", "inner": {"siz": 1}}, "'inner.siz' is not known; .* 'inner.size'"),
        ({"needed": "x", "inner": {"size": 0}}, "inner.size=0 is below the least allowed value 1"),
        ({"needed": "x", "inner": {"size": 10}}, "inner.size=10 is above the greatest"),
    ],
)
def test_wrong_values_are_named(values, message):
    with pytest.raises(ConfigError, match=message):
        check(Outer, values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epoch": 2}, "key 'epoch' is not known; did you mean 'epochs'?"),
        ({"epochs": 0}, "epochs=0 is below the least allowed value 1"),
        ({"lr": float("nan")}, "lr=nan is not a number"),
        ({"ema": 1.0}, "ema=1.0 must be below 1.0"),
        ({"memory": {"batches": 3}}, "did you mean 'memory.batch'?"),
        ({"method": "gemm"}, "method 'gemm' is not known; did you mean 'gem'?"),
        ({"options": {"strenght": 1}}, "did you mean 'options.strength'?"),
        ({"options": {"strength": -1}}, "options.strength=-1.0 is below|options.strength=-1 is"),
        ({"options": 3}, "options=3 must be a table"),
        ({"benchmark": "permuted-digit"}, "did you mean 'permuted-digits'?"),
        ({"stream": {"task": 3}}, "did you mean 'tasks'?"),
        ({"network": "mlpp"}, "did you mean 'mlp'?"),
        ({"network_options": {"hiden": [3]}}, "did you mean 'hidden'?"),
        ({"version": 5}, "version=5 was written by a newer gradproj; .*update gradproj"),
    ],
)
def test_wrong_run_configurations_are_named(changes, message):
    with pytest.raises(ConfigError, match=message):
        resolve({**BASE, **changes})


def test_a_configuration_survives_its_file(tmp_path):
    config = resolve({**BASE, "options": {"strength": 0.5}, "milestones": [1, 2]})
    (tmp_path / "config.json").write_text(config.to_json())
    assert resolve(json.loads((tmp_path / "config.json").read_text())) == config
    assert json.loads(config.to_json())["memory"]["per_task"] == 256


def test_overrides():
    found = parse_overrides(
        ["lr=0.03", "memory.batch=0", "options.layers=module", "on=true", "a=[1]"]
    )
    assert found == {
        "lr": 0.03,
        "memory": {"batch": 0},
        "options": {"layers": "module"},
        "on": True,
        "a": [1],
    }
    with pytest.raises(ConfigError, match="'lr' is not understood; write key=value"):
        parse_overrides(["lr"])


def test_merging_leaves_the_originals_alone():
    base = {"a": {"b": 1}}
    assert merge(base, {"a": {"c": 2}}) == {"a": {"b": 1, "c": 2}}
    assert base == {"a": {"b": 1}}


def test_nearest_lists_the_choices_when_nothing_is_near():
    assert nearest("zzz", ["b", "a"], "key") == "key 'zzz' is not known; use one of a, b"


# Presets ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", presets.available())
def test_every_preset_holds(name):
    config = presets.find(name)
    assert config.preset == name
    # A file may hold a second protocol of a benchmark, whose name it then begins with.
    assert name.split("/")[0].startswith(config.benchmark)


def test_every_cell_of_the_tables_has_its_preset():
    main = ["single", "independent", "ewc", "gem", "agem", "sgem", "ours"]
    ablation = ["shared-only", "shared-layerwise", "full", "full-pca", "layerwise"]
    once = ["tinyer", "gdumb", *ablation, "gem-layerwise", "agem-layerwise"]
    for benchmark in (
        "mnist-permutations",
        "split-cifar10",
        "split-cifar100",
        "split-tiny-imagenet",
    ):
        extra = ["multimodel"] if benchmark.startswith("mnist") else ["icarl"]
        for entry in [*main, *extra]:
            assert presets.find(f"{benchmark}/{entry}").epochs == 1
            assert presets.find(f"{benchmark}/{entry}-3ep").epochs == 3
        for entry in once:
            presets.find(f"{benchmark}/{entry}")


def test_variants_of_the_ablation():
    def options(entry):
        found = presets.find(f"mnist-permutations/{entry}").options
        return found.rank, found.layers

    assert options("shared-only") == (0, "all")
    assert options("shared-layerwise") == (0, "module")
    assert options("full") == ("full", "all")
    assert options("full-pca") == (5, "all")
    assert options("layerwise") == ("full", "module")
    assert options("ours") == (5, "module")


@pytest.mark.parametrize(
    ("alias", "meant"),
    [
        ("a", "single"),
        ("b", "shared-only"),
        ("c", "shared-layerwise"),
        ("d", "full"),
        ("e", "full-pca"),
        ("f", "layerwise"),
        ("g", "ours"),
        ("layerwise-pca", "ours"),
        ("d-printed", "full-printed"),
        ("g-3ep", "ours-3ep"),
        ("gem", "gem"),
        ("a-gem", "a-gem"),
    ],
)
def test_letters_of_the_ablation_are_aliases(alias, meant):
    assert presets.canonical(f"split-cifar10/{alias}") == f"split-cifar10/{meant}"
    if meant != "a-gem":
        found = presets.find(f"split-cifar10/{alias}")
        assert found == presets.find(f"split-cifar10/{meant}")
        assert found.preset == f"split-cifar10/{meant}"
        (job,) = make_jobs([f"split-cifar10/{alias}"], arguments={})
        assert job.name == f"split-cifar10/{meant}/seed-0"


def test_class_incremental_presets_have_no_letters():
    with pytest.raises(ConfigError, match="preset 'class-digits/b' is not known"):
        presets.find("class-digits/b")


@pytest.mark.parametrize("rule", ["violated", "part-margin"])
def test_each_rule_has_presets_for_the_method_and_its_control(rule):
    ours = presets.find(f"mnist-permutations/ours-{rule}")
    assert (ours.options.rule, ours.options.strength, ours.options.replay) == (rule, 0.5, "sum")
    method, options = methods.find("ours").control(to_plain(ours.options))
    control = presets.find(f"mnist-permutations/replay-{rule}")
    assert (control.method, to_plain(control.options)) == (method, options)


def test_the_released_form_has_its_control():
    ours = presets.find("mnist-permutations/ours-released")
    method, options = methods.find("ours").control(to_plain(ours.options))
    control = presets.find("mnist-permutations/replay-released")
    assert (control.method, to_plain(control.options)) == (method, options)
    assert ours.memory.batch == control.memory.batch == 0


def test_table_presets_have_strength_and_printed_ones_have_none():
    for entry in ("ours", "shared-only", "gem", "agem", "sgem"):
        assert presets.find(f"mnist-permutations/{entry}").options.strength == 0.5
        assert presets.find(f"mnist-permutations/{entry}-printed").options.strength == 0.0


def test_table_presets_add_up_and_the_defaults_are_those_of_the_adapter():
    ablation = ("shared-only", "shared-layerwise", "full", "full-pca", "layerwise")
    for entry in ("ours", "replay", *ablation, "first-k", "last-k"):
        assert presets.find(f"mnist-permutations/{entry}").options.replay == "sum"
        assert presets.find(f"permuted-fashion-mnist/{entry}").options.replay == "mean"
    options = resolve({**BASE, "method": "ours"}).options
    default = inspect.signature(Projector).parameters["method"].default
    assert (options.rank, options.strength, options.replay) == (
        default.rank,
        default.strength,
        default.replay,
    )


@pytest.mark.parametrize("benchmark", ["split-mnist", "mine:stream"])
@pytest.mark.parametrize("method", ["ours", "gem", "agem", "sgem", "replay"])
def test_methods_without_a_preset_replay_as_much_as_their_control(method, benchmark):
    values = {"benchmark": benchmark, "method": method}
    options = to_plain(complete(values).options)
    default = inspect.signature(Projector).parameters["method"].default
    assert options["strength"] == default.strength
    # The gradient of one task drawn at random is the mean in expectation.
    assert options.get("replay", "mean") == default.replay


@pytest.mark.parametrize("method", ["ours", "gem", "agem"])
def test_the_control_of_a_default_replays_as_much_as_the_default_control(method):
    options = to_plain(complete({"benchmark": "split-mnist", "method": method}).options)
    name, control = methods.find(method).control(options)
    assert name == "replay"
    default = to_plain(methods.find("replay").Options())
    assert (control["strength"], control["replay"]) == (default["strength"], default["replay"])


def test_a_stored_run_keeps_the_defaults_of_its_version():
    for method, replay in (("gem", "sum"), ("agem", "mean")):
        stored = complete({"benchmark": "split-mnist", "method": method, "version": 3}).options
        assert (stored.strength, stored.replay) == (0.0, replay)
    stored = complete({"benchmark": "split-mnist", "method": "sgem", "version": 3}).options
    assert stored.strength == 0.0
    half = {"method": "gem", "version": 3, "options": {"strength": 0.5, "layers": "all"}}
    found = complete({"benchmark": "split-mnist", **half}).options
    assert (found.strength, found.replay) == (0.5, "sum")


def test_an_unknown_preset_suggests_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'mnist-permutations/ours'"):
        presets.find("mnist-permutation/ours")


SHAPES = {"cifar": (3, 32, 32), "tiny": (3, 64, 64), "mnist": (1, 28, 28), "digits": (1, 8, 8)}
CLASSES = {"cifar100": 100, "tiny-imagenet": 200}


@pytest.mark.parametrize("benchmark", sorted({name.split("/")[0] for name in presets.available()}))
def test_every_entry_builds_its_learner(benchmark, monkeypatch):
    shape = next(shape for key, shape in SHAPES.items() if key in benchmark)
    classes = next((n for key, n in CLASSES.items() if key in benchmark), 10)
    images, labels = torch.zeros(classes, *shape, dtype=torch.uint8), torch.arange(classes)
    dataset = Dataset("look-alike", images, labels, images, labels, classes)
    # Outside data would be downloaded.
    monkeypatch.setattr(
        "gradproj.experiments.methods.class_incremental.outside.load", lambda *_: dataset
    )
    built = set()
    for name in presets.available():
        config = presets.find(name)
        key = (config.method, str(config.options), str(config.network_options))
        if not name.startswith(benchmark + "/") or key in built:
            continue
        # Variants that differ in numbers alone build alike.
        built.add(key)
        known = any(method == config.method for method, *_ in built - {key})
        if known and "resnet" in config.network:
            continue
        stream = benchmarks.build(
            config.benchmark, dataset=dataset, **{**config.stream, "samples": None}
        )
        learner = methods.find(config.method)(Setup(config, stream))
        assert stream.scenario in learner.scenarios
        assert learner.phases(stream.tasks[0])


def test_a_file_may_offer_some_methods_only():
    names = [name for name in presets.available() if name.startswith("mnist-permutations-gpm/")]
    entries = sorted(name.partition("/")[2] for name in names)
    assert entries == ["gpm", "preserve", "sgp", "single"]
    found = presets.find("mnist-permutations-gpm/gpm")
    assert (found.benchmark, found.epochs, found.lr) == ("mnist-permutations", 5, 0.01)
    assert found.options.share == (0.95, 0.99, 0.99)
    # Its strength was chosen with scaled moments, unlike the default of the other benchmarks.
    assert presets.find("mnist-permutations-gpm/preserve").options.scaled


def test_input_space_methods_have_presets_on_all_benchmarks():
    for benchmark in {name.split("/")[0] for name in presets.available()}:
        if benchmark.endswith("-gpm"):
            continue
        for entry in ("preserve", "preserve-replay", "gpm", "sgp", "owm"):
            found = presets.find(f"{benchmark}/{entry}")
            # Both act after a projection and would undo it.
            assert (found.momentum, found.weight_decay) == (0.0, 0.0)
            if not benchmark.startswith("class-"):
                assert found.epochs == 1
                assert presets.find(f"{benchmark}/{entry}-3ep").epochs == 3


@pytest.mark.parametrize("version", [1, 2])
def test_a_stored_run_that_was_drawn_anew_at_every_step_keeps_its_meaning(version):
    values = {"benchmark": "class-digits", "method": "tinyer", "version": version}
    stored = resolve({**values, "memory": {"redraw": "step", "per_task": 7}})
    assert stored == resolve({**values, "version": VERSION, "memory": {"per_task": 7}})
    with pytest.raises(ConfigError, match=r"key 'memory\.redraw' is not known"):
        resolve({**values, "memory": {"redraw": "epoch"}})
