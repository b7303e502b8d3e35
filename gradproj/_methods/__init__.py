"""The methods, one per module, and the quadratic program that GEM needs."""

from gradproj._methods.agem import AGEM
from gradproj._methods.decomposed import Decomposed
from gradproj._methods.gem import GEM
from gradproj._methods.sgem import SGEM

__all__ = ["AGEM", "GEM", "SGEM", "Decomposed"]
