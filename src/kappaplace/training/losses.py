"""The losses of classification-based place recognition and of the kappa head."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from kappaplace import vmf

SCALE, MARGIN = 30.0, 0.40


def large_margin_cosine_loss(
    descriptors: Tensor, prototypes: Tensor, labels: Tensor, scale: float = SCALE, margin: float = MARGIN
) -> Tensor:
    """Cross-entropy of scaled cosines in which the right class must win by ``margin``.

    ``descriptors`` B×d at unit length, ``prototypes`` C×d of any length, ``labels`` B.
    """
    cosines = descriptors @ F.normalize(prototypes, dim=1).T
    penalty = F.one_hot(labels, len(prototypes)).to(cosines.dtype) * margin
    return F.cross_entropy(scale * (cosines - penalty), labels)


def vmf_loss(descriptors: Tensor, anchors: Tensor, kappa: Tensor, dim: int | None = None) -> Tensor:
    """Mean negative log-likelihood of descriptors under vMF(anchor, κ), up to a constant.

    ``dim`` is the descriptor's dimension unless stated: the authors' released code uses 256 for 512-d
    descriptors, which scales every κ by 127.5/255.5; pass ``dim=256`` to reproduce it.
    """
    cosine = (descriptors * anchors).sum(-1)
    return vmf.nll(cosine, kappa, dim or descriptors.shape[-1]).mean()
