"""Changes of every text of a report, and readers of what is rendered: an HTML parser, a Markdown
parser, a real browser."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from html.parser import HTMLParser
from typing import Any

import pytest
from markdown_it import MarkdownIt


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """The same report with ``change`` applied to every text that may be any text."""
    fixed = {"created", "status", "kind", "bound"}
    if isinstance(value, str):
        return change(value)
    if isinstance(value, tuple):
        return tuple(with_texts(item, change) for item in value)
    if isinstance(value, dict):
        return {key: with_texts(item, change) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        changed = {
            field.name: with_texts(getattr(value, field.name), change)
            for field in fields(value)
            if field.name not in fixed
        }
        return replace(value, **changed)
    return value


@pytest.fixture(scope="session")
def texts() -> Callable[..., Any]:
    """Changes every text of a report."""
    return with_texts


VOID = {"meta", "link", "br"}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class Page(HTMLParser):
    """Tags, attributes and the text outside of style; every tag must be closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.style = ""
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open and self._open[-1] == "style":
            self.style += data
        else:
            self.text += data


class MarkdownTexts(HTMLParser):
    """The tables' cells, and every tag there is."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.text = ""
        self._in_cell = False

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self._in_cell = False

    def handle_data(self, data):
        self.text += data
        if self._in_cell:
            self.tables[-1][-1][-1] += data


@pytest.fixture(scope="session")
def page_of() -> type[Page]:
    """Parses a page; a tag that is not closed is an error."""
    return Page


@pytest.fixture(scope="session")
def markdown_of() -> Callable[[str], MarkdownTexts]:
    """Reads Markdown as a pull request would."""

    def read(markdown: str) -> MarkdownTexts:
        parser = MarkdownTexts()
        parser.feed(MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown))
        return parser

    return read


@pytest.fixture(scope="session")
def chromium(tmp_path_factory) -> Callable[..., str]:
    """Shows a page in a headless Chromium with a profile of its own; returns what that printed."""
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH (Debian: apt install chromium)")

    folder = tmp_path_factory.mktemp("chromium")

    def show(html: str, *options: str, errors: bool = False) -> str:
        page = folder / "report.html"
        page.write_text(html, encoding="utf-8")
        command = [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", "--hide-scrollbars", f"--user-data-dir={folder / 'profile'}",
            *options, page.as_uri(),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stderr if errors else done.stdout

    return show
