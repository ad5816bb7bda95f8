"""matplotlib's SVG as part of an HTML page: no ids that clash, colours of the page, real text.

Guarantees: the result holds no script, style sheet or address outside of itself; every id has the
plot's own prefix; a colour of ``COLOURS`` follows the page's light, dark or printed scheme.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

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
    """``text`` without the characters that XML cannot hold."""
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def inlined(source: str, *, prefix: str, label: str) -> str:
    """The drawing as an element that scales with its place and that a screen reader names."""
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
    """One element's attributes: ids and links under the prefix, colours, fewer digits."""
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
    """Groups that say nothing give way to what is in them."""
    children = []
    for child in list(parent):
        _merge(child)
        plain = child.tag in ("g", "defs") and not child.attrib
        children.extend(list(child) if plain and (child.tag == "g" or not len(child)) else [child])
    parent[:] = children


def _shorter(found: re.Match[str]) -> str:
    return f"{float(found.group()):.2f}".rstrip("0").rstrip(".")
