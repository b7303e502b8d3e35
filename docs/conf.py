"""Settings of the documentation site: `make docs` builds it into docs/_build/html."""

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import pictures  # noqa: E402
from docutils import nodes  # noqa: E402
from latex2mathml.converter import convert  # noqa: E402
from sphinx.domains.python import PyObject  # noqa: E402

REPOSITORY = "https://github.com/gradproj/gradproj"

project = "gradproj"
author = "the gradproj contributors"
copyright = "2026, the gradproj contributors"
release = version = installed_version("gradproj")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.extlinks",
    "sphinx_gallery.gen_gallery",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "generated/gallery/*.ipynb", "gallery", "templates"]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3

autosummary_generate = True
templates_path = ["templates"]
autodoc_typehints = (
    "none"  # the signature has the types that readers need, in the docstring's words
)
autodoc_member_order = "bysource"
napoleon_use_rtype = False
# Attributes as a list of fields: properties among them have their own entry below it.
napoleon_use_ivar = True
next(field for field in PyObject.doc_field_types if field.name == "variable").label = "Attributes"
# Every name of gradproj that a text refers to exists. Types in docstrings are words of prose.
nitpicky = True
nitpick_ignore_regex = [
    ("py:class", r"(?!gradproj\.).*|gradproj\..*\.NoOptions"),
    ("py:exc", r"\w+"),
]
extlinks = {"source": (f"{REPOSITORY}/blob/main/%s", "%s")}

# Each example of the gallery runs when the site is built, so each takes a few seconds at most.
# Longer programs are in examples/ of the repository and are run by the tests.
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "generated/gallery",
    "filename_pattern": r"/plot_",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_memory": False,
    "write_computation_times": False,
    "min_reported_time": 1e9,
    "remove_config_comments": True,
    "capture_repr": (),
    "default_thumb_file": str(HERE / "demo.png"),
}

html_math_renderer = "mathml"
html_theme = "furo"
html_title = "gradproj"
html_theme_options = {
    "source_repository": REPOSITORY,
    "source_branch": "main",
    "source_directory": "docs/",
    "light_css_variables": {"color-brand-primary": "#1d4ed8", "color-brand-content": "#1d4ed8"},
    "dark_css_variables": {"color-brand-primary": "#8ab4ff", "color-brand-content": "#8ab4ff"},
}
html_static_path = ["static"]
html_css_files = ["site.css"]

pictures.draw_all(HERE / "generated" / "pictures")


def _mathml(node, display):
    # latex2mathml does not know \arg, and writes commands that it does not know as they are.
    found = convert(node.astext().replace(r"\arg\m", r"\operatorname{arg}\m"), display=display)
    if "\\" in found:
        raise ValueError(f"an equation has a command that is not supported: {node.astext()}")
    return found


def _inline(self, node):
    self.body.append(_mathml(node, "inline"))
    raise nodes.SkipNode


def _block(self, node):
    self.body.append(f'<div class="math">{_mathml(node, "block")}</div>')
    raise nodes.SkipNode


def setup(app):
    """Write equations as MathML, which browsers show without a script from another server."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
