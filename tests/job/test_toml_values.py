"""Plain values: what a dataclass writes it reads back, and what does not fit is refused."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import pytest

from tfopt.errors import UserError
from tfopt.job.recipe_file import Source, from_plain, to_plain


@dataclass(frozen=True)
class Options:
    threads: int | None = None
    ram_mib: float = 0.5
    policy: Literal["auto", "off"] = "auto"


@dataclass(frozen=True)
class Settings:
    name: str
    rate: float | Literal["linear"] | None = None
    jit: bool | Literal["auto"] | None = None
    count: Literal[1, 2] = 1
    gpus: str | int | tuple[int | str, ...] = "all"
    size: tuple[int, float] = (1, 1.0)
    options: Options | None = None
    always: Options = field(default_factory=Options)
    level: bool | int = 1
    hook: str | Callable[[], int] | None = None

    def __post_init__(self):
        if self.name == "" or self.gpus == ():
            raise UserError("The name is empty." if self.name == "" else "Needs a GPU.")
        if self.jit is True and self.rate is not None:
            raise UserError("Settings.jit and rate exclude each other.", fix="drop one")


def read(**table):
    return from_plain(Settings, table, Source(), ("s",))


@pytest.mark.parametrize(
    ("settings", "plain"),
    [
        (Settings("a"), {"name": "a"}),
        (Settings("a", rate=0.5, jit=False), {"name": "a", "rate": 0.5, "jit": False}),
        (Settings("a", rate="linear", jit="auto"), {"name": "a", "rate": "linear", "jit": "auto"}),
        (Settings("a", gpus=(0, "H100")), {"name": "a", "gpus": [0, "H100"]}),
        (Settings("a", gpus=3, size=(2, 0.5)), {"name": "a", "gpus": 3, "size": [2, 0.5]}),
        (Settings("a", options=Options()), {"name": "a", "options": {}}),
        (
            Settings("a", options=Options(threads=2), always=Options(policy="off")),
            {"name": "a", "options": {"threads": 2}, "always": {"policy": "off"}},
        ),
    ],
)
def test_what_is_written_reads_back(settings, plain):
    assert to_plain(settings) == plain
    assert read(**plain) == settings


def test_a_switch_is_not_taken_for_the_number_it_equals():
    assert to_plain(Settings("a", level=True)) == {"name": "a", "level": True}
    assert read(name="a", level=True).level is True
    assert to_plain(Settings("a", level=1)) == {"name": "a"}


def test_a_whole_number_does_for_a_number_and_nothing_else_is_converted():
    rate = read(name="a", rate=1).rate
    assert (rate, type(rate)) == (1.0, float)


@pytest.mark.parametrize(
    ("table", "key", "expected", "received"),
    [
        ({"rate": True}, "s.rate", '"linear" or a number', "True"),
        ({"rate": "sqrt"}, "s.rate", '"linear" or a number', "'sqrt'"),
        ({"jit": 1}, "s.jit", 'true or false or "auto"', "1"),
        ({"count": True}, "s.count", "1 or 2", "True"),
        ({"count": 3}, "s.count", "1 or 2", "3"),
        ({"name": 5}, "s.name", "text in quotes", "5"),
        ({"gpus": [0, 0.5]}, "s.gpus[1]", "a whole number or text in quotes", "0.5"),
        ({"size": [1]}, "s.size", "2 values", "[1]"),
        ({"size": 1}, "s.size", "an array of (a whole number), (a number)", "1"),
        ({"options": {"threads": "x"}}, "s.options.threads", "a whole number", "'x'"),
        ({"options": 4}, "s.options", "a table (threads, ram_mib, policy)", "4"),
        ({"hook": 4}, "s.hook", "text in quotes", "4"),
    ],
)
def test_what_does_not_fit_is_refused(table, key, expected, received):
    with pytest.raises(UserError) as caught:
        read(**{"name": "a", **table})
    error = caught.value
    wrong_length = "has the wrong length" if expected == "2 values" else "does not fit"
    assert error.what == f"{key} {wrong_length}."
    assert (error.expected, error.received) == (expected, received)


def test_unknown_and_missing_keys():
    with pytest.raises(UserError, match=r"s\.always\.treads is not a key of Options") as caught:
        read(name="a", always={"treads": 2})
    assert caught.value.fix == "did you mean threads?"
    assert caught.value.expected == "threads, ram_mib, policy"
    with pytest.raises(UserError, match=r"s\.name is missing"):
        read(rate=1.0)


@pytest.mark.parametrize(
    ("table", "place"),
    [
        ({"name": ""}, "s.name: The name is empty."),
        ({"name": "", "rate": 0.5, "jit": False}, "s.name: The name is empty."),
        ({"name": "a", "gpus": [], "rate": 0.5}, "s.gpus: Needs a GPU."),
        # Two keys are at fault, so neither is blamed.
        ({"name": "a", "jit": True, "rate": 0.5}, "s: Settings.jit and rate exclude each other."),
    ],
)
def test_what_the_dataclass_refuses_is_placed_on_the_key_at_fault(table, place):
    with pytest.raises(UserError) as caught:
        read(**table)
    assert caught.value.what == place


@pytest.mark.parametrize("value", [{"hook": lambda: 1}, {"count": None}, {"gpus": [1, 2]}])
def test_what_would_not_read_back_is_not_written(value):
    with pytest.raises(UserError, match=rf"Settings\.{next(iter(value))} cannot be written"):
        to_plain(Settings("a", **value))
