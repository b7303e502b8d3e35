"""Products with the same matrix in many steps, in the layout that oneDNN computes in."""

from __future__ import annotations

import torch
from torch import Tensor

# Below this number of rows or columns, calling oneDNN takes longer than it saves.
_LEAST = 256
# The number of rows that the layout is chosen for. It is the same for 3 to 320 rows and more.
_ROWS = 64


class Packed:
    """A matrix M in float32 on the CPU, for products g M.

    oneDNN orders M once by the blocks that its products read. torch's own product orders it in each
    call, and leaves half of AVX-512 unused on some processors: with 785 and 1,440 inputs it took
    2.2 to 2.6 times as long on an AMD EPYC.

    Parameters
    ----------
    matrix : Tensor (in, columns)
        The matrix. It is copied.
    """

    def __init__(self, matrix: Tensor) -> None:
        self.memory = torch.ops.mkldnn._reorder_linear_weight(matrix.T.contiguous(), _ROWS)

    def apply(self, g: Tensor) -> Tensor:
        """Return g M."""
        w: Tensor = torch.ops.mkldnn._linear_pointwise(g, self.memory, None, "none", [], "")
        return w


def packs(matrix: Tensor) -> bool:
    """Return whether :class:`Packed` takes this matrix here, and is faster than torch's product."""
    return (
        matrix.dim() == 2
        and max(matrix.shape) >= _LEAST
        and matrix.dtype == torch.float32
        and matrix.device.type == "cpu"
        and _available()
    )


def _available() -> bool:
    """Whether torch has these operators for this processor; they have no public name."""
    return (
        torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )
