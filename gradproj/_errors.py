"""The one thing that goes wrong with good code: gradients that are not numbers."""


class NotFiniteError(ValueError):
    """Gradients hold NaN or infinity, or numbers too large to square.

    A training loop that would rather skip such a step than end can catch it by its name.

    Examples
    --------
    >>> import numpy as np
    >>> import gradproj as gp
    >>> try:
    ...     gp.project(np.asarray([np.nan, 1.0]), np.ones((2, 2)))
    ... except gp.NotFiniteError as error:
    ...     print(str(error).partition(":")[0])
    g holds NaN, infinity or numbers too large to square
    """
