"""The control of a method: what is left of it without its constraints."""

import pytest

from gradproj.experiments import methods

REPLAY = ("replay", {"strength": 0.5, "replay": "sum"})
SINGLE = ("single", {})
VIOLATED = {**REPLAY[1], "rule": "violated"}


@pytest.mark.parametrize(
    ("method", "options", "control"),
    [
        ("ours", {"strength": 0.5, "replay": "sum"}, REPLAY),
        ("ours", {"strength": 0.5, "replay": "mean"}, ("replay", {**REPLAY[1], "replay": "mean"})),
        ("ours", {"strength": 0.0, "replay": "mean"}, SINGLE),
        ("ours", {**REPLAY[1], "rule": "always", "layers": "module"}, REPLAY),
        ("ours", {**VIOLATED, "layers": "tensor"}, ("replay", {**VIOLATED, "layers": "tensor"})),
        (
            "ours",
            {**REPLAY[1], "rule": "part-margin", "layers": "five"},
            ("replay", {**REPLAY[1], "rule": "part-margin", "layers": "five"}),
        ),
        ("ours", {**VIOLATED, "strength": 0.0}, SINGLE),
        ("gem", {"strength": 0.5}, REPLAY),
        ("gem", {"strength": 0.0}, SINGLE),
        ("agem", {"strength": 0.0}, SINGLE),
        ("gem", {"strength": 0.5, "replay": "mean"}, ("replay", {**REPLAY[1], "replay": "mean"})),
        ("agem", {"strength": 0.5}, ("replay", {**VIOLATED, "replay": "mean", "layers": "all"})),
        ("agem", {"strength": 0.5, "replay": "sum"}, ("replay", {**VIOLATED, "layers": "all"})),
        ("agem", {"strength": 0.5, "form": "original"}, None),
        ("sgem", {"strength": 0.0}, SINGLE),
        ("sgem", {"strength": 0.5}, None),
        ("preserve", {"strength": 3.0}, SINGLE),
        ("gpm", {}, SINGLE),
        ("sgp", {}, SINGLE),
        ("owm", {}, SINGLE),
        ("preserve-replay", {"strength": 3.0, "gamma": 0.5, "replay": "sum"}, REPLAY),
        ("preserve-replay", {"strength": 3.0, "gamma": 0.0, "replay": "sum"}, SINGLE),
        ("ogd", {}, None),
        ("ewc", {}, None),
        ("single", {}, None),
    ],
)
def test_each_method_names_its_control(method, options, control):
    assert methods.find(method).control(options) == control


def test_a_control_has_no_control_of_its_own_and_takes_these_options():
    for name, options in (REPLAY, SINGLE, ("replay", {**VIOLATED, "layers": "all"})):
        found = methods.find(name)
        assert found.control(options) is None
        assert set(options) <= set(found.Options.__dataclass_fields__)
