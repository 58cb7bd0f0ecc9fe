"""What every function of this package does to its arguments first."""

from functools import reduce

import torch
from torch import Tensor

from kappaplace.errors import KappaPlaceError


def check_dim(dim: int) -> None:
    """Refuse a dimension in which there is no sphere with a tangent direction."""
    if dim < 2 or dim % 1 != 0:
        raise KappaPlaceError(
            f"The dimension of a von Mises-Fisher distribution must be 2 or more, got {dim}."
        )


def working(*values: Tensor | float) -> list[Tensor]:
    """The values as tensors of one dtype, never below float32 (also inside autocast).

    Python numbers follow the tensors beside them, and are float64 when there is no tensor.
    """
    tensors = [value for value in values if isinstance(value, Tensor)]
    if not tensors:
        return [torch.as_tensor(value, dtype=torch.float64) for value in values]
    dtype = reduce(torch.promote_types, (tensor.dtype for tensor in tensors), torch.float32)
    device = tensors[0].device
    return [
        value.to(dtype) if isinstance(value, Tensor) else torch.tensor(value, dtype=dtype, device=device)
        for value in values
    ]
