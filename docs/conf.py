"""Settings of Sphinx. The API pages import graphpool, so it must be built."""

import inspect
import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]

import generate_onnx_ops  # noqa: E402
import generate_ops  # noqa: E402

import graphpool  # noqa: E402

project = "graphpool"
author = copyright = "the graphpool developers"  # noqa: A001
release = version = graphpool.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
highlight_language = "text"
exclude_patterns = ["_build"]
html_theme = "alabaster"
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_theme_options = {"description": graphpool.__doc__.splitlines()[0].partition(": ")[2], "fixed_sidebar": True}

autodoc_member_order = "groupwise"
autodoc_typehints = "none"
numpydoc_show_class_members = False


def leave_out_map(app, what, name, obj, options, lines):
    """Packages open with a map of their modules, which is for those who read the sources."""
    if what == "module":
        lines[1:] = [""]


def leave_out_self(app, what, name, obj, options, signature, returned):
    """Signatures of compiled methods begin with ``self``, those of others do not."""
    if what == "method" and type(obj).__name__ == "cython_function_or_method":
        found = inspect.signature(obj)
        return str(found.replace(parameters=[p for name, p in found.parameters.items() if name != "self"])), None
    return None


def setup(app):
    """Called by Sphinx."""
    app.connect("autodoc-process-signature", leave_out_self, priority=400)  # before that of numpydoc
    app.connect("autodoc-process-docstring", leave_out_map, priority=900)


generate_ops.generate(DOCS / "reference" / "ops.md")
generate_onnx_ops.generate(DOCS / "reference" / "onnx-ops.md")
