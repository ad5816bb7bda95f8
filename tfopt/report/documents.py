"""Read the file of a report, show it, and write it in its three forms.

A renderer is loaded when it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tfopt.files import prepare_folder, write_atomically
from tfopt.report.bench_figures import kept
from tfopt.report.bench_report import NAME, BenchReport, VariantReport, read_bench_report
from tfopt.report.view import view_of

_WIDTH = 100


@dataclass(frozen=True)
class Report:
    """A measurement to print, to look into, and to save.

    Example:
        >>> report = Report.read("cnn_mnist_report")
        >>> print(report)
        >>> report["kept"].step_ms

    Attributes:
        found: What was measured, as data.
    """

    found: BenchReport

    @staticmethod
    def read(path: str | Path) -> Report:
        """Return the report in a file, or in a folder with a bench.json."""
        return Report(read_bench_report(path))

    def __getitem__(self, name: str) -> VariantReport:
        """Return a variant by its name.

        "kept" is the one that is recommended: the baseline, where no link is.
        """
        found = self.found.variant(name)
        if name == "kept":
            found = kept(self.found) or self.found.reference
        if found is None:
            raise KeyError(f"{name!r}: this report has {', '.join(self.names)}")
        return found

    @property
    def names(self) -> list[str]:
        """Return the names of the variants, and "kept"."""
        return [*(variant.name for variant in self.found.variants), "kept"]

    def __str__(self) -> str:
        """Return what ``tfopt report`` prints."""
        from tfopt.report.terminal import as_text

        return as_text(view_of(self.found), _WIDTH).rstrip()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the headline and the tables for a notebook."""
        from tfopt.report.notebook import report_fragment

        view = view_of(self.found)
        lines = view.headline, view.brought or view.as_it_is
        return report_fragment(self.found, *lines, code=view.keep)

    def save(self, folder: str | Path) -> Path:
        """Leave bench.json, bench.md and bench.html in a folder, each file whole; return it."""
        from tfopt.report.html import as_html
        from tfopt.report.markdown import as_markdown

        place = prepare_folder(folder)
        write_atomically(place / NAME, self.found.to_json())
        write_atomically(place / "bench.md", as_markdown(view_of(self.found)))
        write_atomically(place / "bench.html", as_html(self.found))
        return place
