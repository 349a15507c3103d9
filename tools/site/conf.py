"""Settings of Sphinx for the documentation site (`tools.site`)."""

from __future__ import annotations

from tracer_core import __version__

project = "tracer-core"
copyright = "the authors of tracer-core"
version = release = __version__
html_title = f"tracer-core {__version__}"
root_doc = "index"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
html_theme = "furo"
html_copy_source = False

# GitHub's Markdown: its anchors, its tables; a link to a heading that is not there is a warning.
myst_heading_anchors = 4
myst_enable_extensions = ["strikethrough"]
# Fields of different classes have the same name.
suppress_warnings = ["myst.strikethrough", "ref.python"]

# Docstrings write `name` for code.
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
# Types in signatures: the site has no page for torch, the standard library and inner names.
nitpick_ignore_regex = [("py:.*", ".*")]
