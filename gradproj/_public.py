"""The public names of the core, which `gradproj` offers when one of them is first used."""

from gradproj._basis import decompose, gram_schmidt, principal_components
from gradproj._closed_form import KKTResiduals, kkt_residuals, solve
from gradproj._combine import combine, combine_layers
from gradproj._errors import NotFiniteError
from gradproj._measure import measure, measure_layers
from gradproj._method import Method, Solution
from gradproj._methods import AGEM, GEM, SGEM, Decomposed
from gradproj._preserve.basis import InputBasis, input_basis
from gradproj._preserve.low_rank import LowRankMoments
from gradproj._preserve.moments import InputMoments
from gradproj._preserve.preservation import Preservation
from gradproj._preserve.step import preserve
from gradproj._products import Products
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
