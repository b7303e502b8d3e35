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

:func:`preserve` needs no gradients of old tasks. :class:`InputMoments` accumulates the second
moments of a layer's old inputs, and the update leaves the outputs for such inputs nearly unchanged.

Arrays may come from NumPy, CuPy, torch, JAX, dpnp, dask, array-api-strict or any other library that
follows the array API standard. Results have the library, dtype and device of the input. They are
reproducible to the last bit with one BLAS thread. With several threads, sums may be rounded in
another order, which changes the last bits of some results.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradproj._public import *  # noqa: F403
    from gradproj._public import __all__ as __all__

    __version__: str
else:
    # The public names are loaded together, when one of them is first used. The command `gradproj`
    # can then answer Ctrl-C and --help before NumPy is loaded, which takes a tenth of a second.
    # Type checkers do not read these functions, so that they still report misspelled names.
    def __getattr__(name):
        if name == "__version__":
            from importlib.metadata import version

            return version("gradproj")
        if name == "__all__" or not name.startswith("_"):
            public = import_module("gradproj._public")
            globals().update({each: getattr(public, each) for each in ("__all__", *public.__all__)})
            if name in globals():
                return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        special = {name for name in globals() if name.startswith("__")}
        return sorted(special | set(import_module("gradproj._public").__all__))
