"""Gradient projection for continual learning, on the arrays of any array-API library.

With the old tasks' gradients as the rows of ``G`` (T, N) and the new task's gradient ``g`` (N,):

>>> import numpy as np
>>> import gradproj as gp
>>> g = np.asarray([1.0, 2.0, 1.0])
>>> G = np.asarray([[-1.0, 1.0, 0.0], [-1.0, -1.0, 0.0]])
>>> gp.project(g, G)
array([0., 0., 1.])

Use :func:`project` and :func:`project_layers` with a method: :class:`Decomposed`, :class:`GEM`,
:class:`AGEM`, :class:`SGEM` or a user-defined :class:`Method`. Their three steps are available
separately as :func:`measure`, :meth:`Method.solve` and :func:`combine`. The paper's algorithm is
available step by step as :func:`decompose`, :func:`gram_schmidt` or :func:`principal_components`,
and :func:`solve`; :func:`kkt_residuals` judges any update.

:func:`preserve` needs no gradients of old tasks: :class:`InputMoments` remembers what they feed
into a layer. The update then leaves the answers to such inputs nearly unchanged.

Arrays may come from NumPy, CuPy, torch, JAX, dpnp, dask, array-api-strict or any other library that
follows the array API standard. Results have the library, dtype and device of the input. They are
reproducible to the last bit with one BLAS thread. With several threads, sums may be rounded in
another order, which changes the last bits of some results.
"""

from gradproj._basis import decompose, gram_schmidt, principal_components
from gradproj._closed_form import KKTResiduals, kkt_residuals, solve
from gradproj._combine import combine, combine_layers
from gradproj._errors import NotFiniteError
from gradproj._method import Method, Solution
from gradproj._methods import AGEM, GEM, SGEM, Decomposed
from gradproj._preserve.basis import InputBasis, input_basis
from gradproj._preserve.low_rank import LowRankMoments
from gradproj._preserve.moments import InputMoments
from gradproj._preserve.preservation import Preservation
from gradproj._preserve.step import preserve
from gradproj._products import Products, measure, measure_layers
from gradproj._project import Projection, project, project_layers
from gradproj._reduction import Reduction

__all__ = [
    "AGEM",
    "GEM",
    "SGEM",
    "Decomposed",
    "InputBasis",
    "InputMoments",
    "KKTResiduals",
    "LowRankMoments",
    "Method",
    "NotFiniteError",
    "Preservation",
    "Products",
    "Projection",
    "Reduction",
    "Solution",
    "combine",
    "combine_layers",
    "decompose",
    "gram_schmidt",
    "input_basis",
    "kkt_residuals",
    "measure",
    "measure_layers",
    "preserve",
    "principal_components",
    "project",
    "project_layers",
    "solve",
]

__version__: str


def __getattr__(name: str) -> str:
    # Looked up on demand: it would take a quarter of the import time.
    if name == "__version__":
        from importlib.metadata import version

        return version("gradproj")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
