"""Arrays of any library: checks on entry, device and precision, conversions, and the way back."""

from gradproj._arrays.checks import check_alike, check_array
from gradproj._arrays.conversion import (
    as_numbers,
    from_host,
    narrowed,
    overflow,
    stack_on_host,
    to_host,
    widened,
)
from gradproj._arrays.entry import Entered, enter
from gradproj._arrays.libraries import (
    Array,
    HostArray,
    SameArray,
    bits,
    device,
    has_float64,
    library,
    namespace,
)
from gradproj._arrays.precision import computing, is_plain

__all__ = [
    "Array",
    "Entered",
    "HostArray",
    "SameArray",
    "as_numbers",
    "bits",
    "check_alike",
    "check_array",
    "computing",
    "device",
    "enter",
    "from_host",
    "has_float64",
    "is_plain",
    "library",
    "namespace",
    "narrowed",
    "overflow",
    "stack_on_host",
    "to_host",
    "widened",
]
