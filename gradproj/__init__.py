"""Gradient projection for continual learning, on the arrays of any array-API library.

With the old tasks' gradients as the rows of ``G`` (T, N) and the new task's gradient ``g`` (N,):

>>> import numpy as np
>>> import gradproj as gp
>>> g = np.asarray([1.0, 2.0, 1.0])
>>> G = np.asarray([[-1.0, 1.0, 0.0], [-1.0, -1.0, 0.0]])
>>> gp.project(g, G)
array([0., 0., 1.])

The fast road is :func:`project` and :func:`project_layers` with a method (:class:`Decomposed`,
:class:`GEM`, :class:`AGEM`, :class:`SGEM`); its three steps are public as :func:`measure`,
:meth:`Method.solve` and :func:`combine`. The explicit road is the paper's, step by step:
:func:`decompose`, :func:`gram_schmidt` or :func:`principal_components`, :func:`solve`, and
:func:`kkt_residuals` to judge any update.
"""

from gradproj._agem import AGEM
from gradproj._basis import decompose, gram_schmidt, principal_components
from gradproj._closed_form import KKTResiduals, kkt_residuals, solve
from gradproj._decomposed import Decomposed
from gradproj._errors import NotFiniteError
from gradproj._gem import GEM
from gradproj._measure import combine, measure
from gradproj._method import Method, Solution
from gradproj._project import Projection, project, project_layers
from gradproj._sgem import SGEM

__all__ = [
    "AGEM",
    "GEM",
    "SGEM",
    "Decomposed",
    "KKTResiduals",
    "Method",
    "NotFiniteError",
    "Projection",
    "Solution",
    "combine",
    "decompose",
    "gram_schmidt",
    "kkt_residuals",
    "measure",
    "principal_components",
    "project",
    "project_layers",
    "solve",
]

__version__: str


def __getattr__(name: str) -> str:
    # Looked up when it is asked for: the lookup takes a quarter of the import.
    if name == "__version__":
        from importlib.metadata import version

        return version("gradproj")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
