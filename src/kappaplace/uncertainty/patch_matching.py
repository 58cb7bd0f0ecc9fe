"""How many cells of two feature maps show the same things in the same arrangement.

Cells that are each other's nearest vote for the shift between them; the score is the share of cells that
agree on one shift, give or take ``tolerance`` cells. A check of geometry with what the encoder has computed
anyway: no keypoints, no second network.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

TOLERANCE = 2  # cells: objects at other distances shift by other amounts


def patch_agreement(a: Tensor, b: Tensor, tolerance: int = TOLERANCE) -> Tensor:
    """Share of cells in [0, 1], B, of maps B×C×H×W of one size.

    >>> same = torch.randn(1, 8, 5, 5)
    >>> float(patch_agreement(same, same))
    1.0
    """
    count, _, height, width = a.shape
    cells = height * width
    similarity = _cells(a) @ _cells(b).transpose(1, 2)
    forth, back = similarity.argmax(2), similarity.argmax(1)
    here = torch.arange(cells, device=a.device)
    mutual = back.gather(1, forth) == here
    down = forth // width - here // width + height - 1
    right = forth % width - here % width + width - 1
    wide = 2 * width - 1
    votes = torch.zeros(count, (2 * height - 1) * wide, device=a.device)
    votes.scatter_add_(1, down * wide + right, mutual.float())
    plane = votes.view(count, 1, 2 * height - 1, wide)
    side = 2 * tolerance + 1
    together = F.avg_pool2d(plane, side, stride=1, padding=tolerance) * side**2
    return together.amax((1, 2, 3)) / cells


def _cells(maps: Tensor) -> Tensor:
    """Unit vectors B×HW×C of what sets each cell apart from the image's mean."""
    flat = maps.flatten(2).transpose(1, 2).float()
    return F.normalize(flat - flat.mean(1, keepdim=True), dim=2)
