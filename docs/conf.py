"""Build the site: ``make docs`` runs Sphinx on the Markdown pages and the docstrings.

Sources are taken from the root of the repository, so that a link between two pages is the same here
and where the repository is browsed.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import tfopt  # noqa: E402

os.environ["COLUMNS"] = "80"  # the width of usages

project = "tfopt"
author = "the tfopt authors"
version = release = tfopt.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "site_parts"]
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "recipes/README.md",
    "benchmarks/README.md",
    "benchmarks/results/*.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
]
exclude_patterns = [".*", "tests", "tfopt", "site", "build", "dist"]
# Notebooks are kept with what they printed. A page of results stands in no table of contents.
nb_execution_mode = "off"
nb_merge_streams = True
suppress_warnings = ["toc.not_included"]

myst_heading_anchors = 4
highlight_language = "none"
smartquotes_action = "D"  # dashes alone
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "description"
python_display_short_literal_types = True
autodoc_typehints_description_target = "documented_params"
python_maximum_signature_line_length = 80
toc_object_entries_show_parents = "hide"
napoleon_use_rtype = False

html_title = f"tfopt {version}"
html_theme = "pydata_sphinx_theme"
html_static_path = ["theme"]
html_css_files = ["site.css"]
html_extra_path = ["theme/index.html"]
html_show_sourcelink = False
html_copy_source = False
html_sidebars = {page: [] for page in ("docs/index", "recipes/*", "benchmarks/**", "C*")}  # alone
html_theme_options = {
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "navbar_persistent": ["search-button"],
    "header_links_before_dropdown": 6,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_show_copyright = False
