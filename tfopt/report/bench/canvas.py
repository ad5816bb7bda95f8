"""Draw on what every plot shares: one width, one font size, rows with their names above the bars.

matplotlib's SVG becomes part of a page: ids under the plot's own prefix, the page's colours, real
text, no script and no style sheet. A text has the room that the widest common font needs, since a
page uses its own; on a screen 390 pixels wide, none is smaller than 9 pixels.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from xml.etree import ElementTree

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FuncFormatter, MaxNLocator
from rich.cells import cell_len

from tfopt.report import format as fmt

_SVG = "http://www.w3.org/2000/svg"
_LINK = "{http://www.w3.org/1999/xlink}href"
_NAMES = (
    "ink", "soft", "line", "card", "base", "step", "kept", "worse", "amber",
    "one", "two", "three", "four",
)  # fmt: skip
# Stand-ins that matplotlib takes for colours, one for each colour variable of the page.
COLOURS = {name: f"#0000{number:02x}" for number, name in enumerate(_NAMES, start=1)}
_VARIABLES = {colour: f"var(--{name})" for name, colour in COLOURS.items()}
_COLOUR = re.compile(r"#0000[0-9a-f]{2}")
_POINTED_AT = re.compile(r"#([\w.-]+)")
_LONG_NUMBER = re.compile(r"-?\d+\.\d+")
_FONT_FAMILY = re.compile(r"font-family:[^;]*;?\s*")
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def harmless(text: str) -> str:
    """Return ``text`` without the characters that XML cannot hold."""
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def inlined(source: str, *, prefix: str, label: str) -> str:
    """Return the drawing as an element that scales and that a screen reader names."""
    root = ElementTree.fromstring(source)
    for group in root.iter(f"{{{_SVG}}}defs"):
        for sheet in group.findall(f"{{{_SVG}}}style"):
            group.remove(sheet)  # it would style the whole page
    for data in root.findall(f"{{{_SVG}}}metadata"):
        root.remove(data)
    pointed_at = _pointed_at(root)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.tail = None
        element.text = element.text if element.tag == "text" else None
        _tidy(element, prefix, pointed_at)
    _merge(root)
    box = root.get("viewBox", "")
    root.attrib.clear()
    root.attrib.update(
        {"viewBox": box, "role": "img", "aria-label": harmless(label), "class": "plot"}
    )
    return ElementTree.tostring(root, encoding="unicode")


def _pointed_at(root: ElementTree.Element) -> set[str]:
    found = set()
    for element in root.iter():
        for name in (_LINK, "clip-path"):
            found.update(_POINTED_AT.findall(element.get(name, "")))
    return found


def _tidy(element: ElementTree.Element, prefix: str, pointed_at: set[str]) -> None:
    """Put ids and links under the prefix, name colours, and drop digits."""
    own = element.attrib
    if own.get("id") not in pointed_at:
        own.pop("id", None)
    if own.get("transform", "").startswith("rotate(-0 "):
        del own["transform"]
    if "id" in own:
        own["id"] = f"{prefix}-{own['id']}"
    if _LINK in own:
        own["href"] = f"#{prefix}-{own.pop(_LINK)[1:]}"
    if "clip-path" in own:
        own["clip-path"] = own["clip-path"].replace("#", f"#{prefix}-")
    if "style" in own:
        style = _FONT_FAMILY.sub("", own["style"])
        own["style"] = _COLOUR.sub(lambda found: _VARIABLES[found.group()], style)
    for name in ("d", "x", "y", "transform"):
        if name in own:
            own[name] = " ".join(_LONG_NUMBER.sub(_shorter, own[name]).split())


def _merge(parent: ElementTree.Element) -> None:
    """Replace groups without attributes by what is in them."""
    children = []
    for child in list(parent):
        _merge(child)
        plain = child.tag in ("g", "defs") and not child.attrib
        children.extend(list(child) if plain and (child.tag == "g" or not len(child)) else [child])
    parent[:] = children


def _shorter(found: re.Match[str]) -> str:
    return f"{float(found.group()):.2f}".rstrip("0").rstrip(".")


WIDTH = 360
SIZE = 11
_LEFT, _RIGHT, _TOP = 5, 5, 2
INNER = WIDTH - _LEFT - _RIGHT
"""What rows have, from the first tick to the last."""
_AXIS = 36
_GAP = 12
# Emoji and ideographs are wider than what the fonts that measure here have for them.
_WIDE = 1.35
_SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tfopt",
    "font.family": ["DejaVu Sans"],
    "font.size": SIZE,
    "text.usetex": False,
    "text.parse_math": False,
    "axes.unicode_minus": False,
    "axes.linewidth": 0.8,
    "path.simplify": False,
}


@dataclass(frozen=True)
class Plot:
    """One drawing for a page, or in words why there is none."""

    key: str
    title: str
    caption: str
    """How to read it."""
    legend: tuple[tuple[str, str], ...]
    """Name of a colour and what it stands for."""
    svg: str
    reason: str


def absent(key: str, title: str, reason: str) -> Plot:
    """Return what stands where there is nothing to draw."""
    return Plot(key, title, "", (), "", fmt.one_line(reason))


@contextmanager
def drawing() -> Iterator[None]:
    """Set what a plot needs, for this block alone."""
    with warnings.catch_warnings(), matplotlib.rc_context(_SETTINGS):
        # A browser has fonts for what matplotlib's own lack.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        warnings.filterwarnings("ignore", "Matplotlib currently does not support .* natively")
        yield


def written(figure: Figure, key: str, label: str) -> str:
    """Return the figure as an element of a page."""
    target = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    FigureCanvasSVG(figure).print_svg(target, metadata=nothing)
    return inlined(target.getvalue(), prefix=key, label=label)


def axes_of(height: float, left: float = _LEFT) -> tuple[Figure, Any]:
    """Return an empty figure and its only axes, ``height`` high without the axis below."""
    total = height + _AXIS + _TOP
    figure = Figure(figsize=(WIDTH / 72, total / 72), dpi=72, facecolor="none")
    place = (left / WIDTH, _AXIS / total, (WIDTH - left - _RIGHT) / WIDTH, height / total)
    axes = figure.add_axes(place, facecolor="none")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(COLOURS["line"])
    axes.tick_params(
        colors=COLOURS["line"], labelcolor=COLOURS["soft"], labelsize=SIZE, length=3, pad=3
    )
    return figure, axes


def rows(
    count: int, limits: tuple[float, float], unit: str, height: float, *, whole: bool = False
) -> tuple[Figure, Any]:
    """Return axes in which row n reaches from n to n + 1, downwards: its words, then its bar.

    ``whole``: only whole numbers on the axis.
    """
    figure, axes = axes_of(count * height)
    axes.set_ylim(count, 0)
    axes.set_yticks([])
    axes.set_xlim(limits)
    measure(axes.xaxis, limits, whole=whole)
    axes.set_xlabel(unit, color=COLOURS["soft"], fontsize=SIZE, labelpad=2)
    return figure, axes


def measure(axis: Any, limits: tuple[float, float], *, whole: bool) -> None:
    """Set a few ticks, none so near to an end that its label leaves the drawing."""
    low, high = limits
    found = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10], integer=whole).tick_values(low, high)
    ticks = []
    for tick in found:
        place = _LEFT + (tick - low) / (high - low) * INNER
        half = width(_tick(tick)) / 2
        if low <= tick <= high and half <= place <= WIDTH - half:
            ticks.append(tick)
    axis.set_ticks(ticks)
    axis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))


def _tick(value: float) -> str:
    return f"{value:,.10g}"


def name_row(axes: Any, number: int, words: tuple[str, str], *, bold: bool, height: float) -> None:
    """Write a row's name at the left and its figure at the right, above the bar."""
    name, value = map(harmless, words)
    weight = "bold" if bold else "normal"
    place = axes.get_yaxis_transform()
    baseline = number + (SIZE + 2) / height
    room = INNER - _GAP - width(value, weight)
    style = {"transform": place, "fontsize": SIZE, "fontweight": weight, "parse_math": False}
    axes.text(0, baseline, shortened(name, room, weight), color=COLOURS["ink"], **style)
    axes.text(1, baseline, value, color=COLOURS["ink" if bold else "soft"], ha="right", **style)


def strip(number: int, height: float) -> tuple[float, float]:
    """Return top and bottom of a row's bar, below its words."""
    return number + (SIZE + 7) / height, number + 1 - 5 / height


def shortened(text: str, room: float, weight: str = "normal") -> str:
    """Return ``text``, or as much of its beginning as there is room for."""
    text = harmless(text)
    if width(text[:400], weight) <= room and len(text) <= 400:
        return text
    end = "\N{HORIZONTAL ELLIPSIS}"
    left = room - width(end, weight)
    for number, character in enumerate(text):
        left -= _advance(character, weight)
        if left < 0:
            return text[:number].rstrip() + end
    return text


def width(text: str, weight: str = "normal") -> float:
    """Return about what a line of text takes in the widest of the common fonts."""
    return sum(_advance(character, weight) for character in text)


@lru_cache(maxsize=4096)
def _advance(character: str, weight: str) -> float:
    if cell_len(character) > 1:
        return _WIDE * SIZE
    with drawing():
        font = FontProperties(family="DejaVu Sans", size=SIZE, weight=weight)
        found = text_to_path.get_text_width_height_descent(character, font, ismath=False)
    return float(found[0])
