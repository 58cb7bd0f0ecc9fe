"""From the feature map to descriptor and κ in inference, with nothing done twice.

Both exponents of GeM go through one power, one mean and one root, and both projections through one product,
so that κ starts no kernel of its own before its Softplus.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kappaplace.models.aggregation import GEM_EPS, Aggregation, normalise_channels
from kappaplace.models.heads import FoldedKappaHead, positive
from kappaplace.models.place_model import unit
from kappaplace.types import Embeddings


class Tail(nn.Module):
    """The aggregation and a folded kappa head (or none) as one."""

    p: Tensor
    root: Tensor
    weight: Tensor
    bias: Tensor

    @torch.no_grad()
    def __init__(self, aggregation: Aggregation, head: FoldedKappaHead | None) -> None:
        super().__init__()
        project, self.own = aggregation.project, head is not None and not head.tied
        self.dim = len(project.weight)
        weight, bias, p = (x.detach() for x in (project.weight, project.bias, aggregation.gem.p))
        if head is not None:
            row, zeros = head.last.weight, torch.zeros_like(head.last.weight)
            if self.own:
                # Two vectors of pooled features in a row, of which each projection reads its own.
                weight = torch.cat([weight, torch.zeros_like(weight)], 1)
                row = torch.cat([zeros, row], 1)
                p = torch.cat([p, head.gem.p])  # type: ignore[list-item]
            weight, bias = torch.cat([weight, row]), torch.cat([bias, head.last.bias])
        self.register_buffer("p", p.clone().view(-1, 1, 1, 1) if self.own else p.clone())
        self.register_buffer("root", (1.0 / p).view(-1, 1) if self.own else 1.0 / p)
        self.register_buffer("weight", weight.clone())
        self.register_buffer("bias", bias.clone())

    def forward(self, last: Tensor) -> Embeddings:
        """B×C×H×W → descriptors B×d and κ of shape B."""
        x = normalise_channels(last).clamp(min=GEM_EPS)
        x = x.unsqueeze(1) if self.own else x
        pooled = x.pow(self.p).mean(dim=(-2, -1)).pow(self.root).flatten(1)
        both = F.linear(pooled, self.weight, self.bias)
        if both.shape[1] == self.dim:
            return Embeddings(unit(both))
        return Embeddings(unit(both[:, : self.dim]), positive(both[:, self.dim :]))
