"""Plain values: what a dataclass writes it reads back, and what does not fit is refused."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import pytest

from tfopt.errors import UserError
from tfopt.job.plain_values import from_plain, to_plain


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
    hook: str | Callable[[], int] | None = None
    also: Mapping[str, tuple[Options, ...]] = field(default_factory=dict)

    def __post_init__(self):
        if self.jit is True and self.rate is not None:
            raise UserError("Settings.jit and rate exclude each other.", fix="drop one")


def read(**table):
    return from_plain(Settings, table)


@pytest.mark.parametrize(
    ("settings", "plain"),
    [
        (Settings("a"), {"name": "a"}),
        (Settings("a", rate="linear", jit="auto"), {"name": "a", "rate": "linear", "jit": "auto"}),
        (Settings("a", gpus=3, size=(2, 0.5)), {"name": "a", "gpus": 3, "size": [2, 0.5]}),
        (Settings("a", rate=1.0), {"name": "a", "rate": 1}),
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


@pytest.mark.parametrize(
    ("table", "what", "expected", "received"),
    [
        ({"rate": True}, "rate does not fit.", "a valid number or 'linear'", "true"),
        ({"rate": float("inf")}, "rate does not fit.", "a finite number or 'linear'", "Infinity"),
        ({"jit": 1}, "jit does not fit.", "a valid boolean or 'auto'", "1"),
        ({"count": 3}, "count does not fit.", "1 or 2", "3"),
        ({"gpus": [0, 0.5]}, "gpus[1] does not fit.", "a valid integer or a valid string", "0.5"),
        ({"options": {"threads": "x"}}, "options.threads does not fit.", "a valid integer", '"x"'),
        ({"always": {"treads": 2}}, "always.treads is an unknown key.", None, "treads"),
        ({"also": {"x": [{}, {"polcy": 1}]}}, "also.x[1].polcy is an unknown key.", None, "polcy"),
        # What the dataclass refuses is its own error.
        ({"jit": True, "rate": 0.5}, "Settings.jit and rate exclude each other.", None, None),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_its_key(table, what, expected, received):
    with pytest.raises(UserError) as caught:
        read(**{"name": "a", **table})
    error = caught.value
    assert (error.what, error.expected, error.received) == (what, expected, received)


def test_unknown_and_missing_keys():
    with pytest.raises(UserError, match=r"nmae is an unknown key") as caught:
        read(nmae="a")
    assert caught.value.fix == "did you mean name?"
    with pytest.raises(UserError, match=r"^name is missing"):
        read(rate=1.0)
    with pytest.raises(UserError, match=r"The file does not fit(.|\n)*an object"):
        from_plain(Settings, [])
