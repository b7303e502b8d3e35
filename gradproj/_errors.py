"""The exception for gradients that contain NaN or infinity."""


class NotFiniteError(ValueError):
    """Raised when gradients contain NaN or infinity, or when the update overflows its dtype.

    A training loop that should skip such a step instead of stopping can catch it by name.

    Examples
    --------
    >>> import numpy as np
    >>> import gradproj as gp
    >>> try:
    ...     gp.project(np.asarray([np.nan, 1.0]), np.ones((2, 2)))
    ... except gp.NotFiniteError as error:
    ...     print(str(error).partition(":")[0])
    g contains NaN or infinity
    """
