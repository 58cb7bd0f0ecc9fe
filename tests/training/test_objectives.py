"""Objectives: sums of tested losses, the weights they update, and the constant each starts from."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor, nn

from kappaplace import vmf
from kappaplace.errors import KappaPlaceError
from kappaplace.models.place_model import PlaceModel
from kappaplace.training.losses import (
    FixedAnchors,
    batch_centroids,
    bayesian_triplet_loss,
    gaussian_nll,
    large_margin_cosine_loss,
    multi_similarity_loss,
    multi_similarity_pairs,
    stun_loss,
    vmf_loss,
)
from kappaplace.training.objectives import (
    BayesianTriplet,
    Classification,
    Contrastive,
    Distillation,
    Objective,
    Step,
    ToAnchors,
    gather_batch,
)
from kappaplace.training.settings import LossSettings

BATCH, DIM = 8, 6
LOSS = LossSettings()
PLACES = torch.tensor([0, 0, 1, 1, 2, 2, 2, 1])


def unit(rows: int = BATCH) -> Tensor:
    return nn.functional.normalize(torch.randn(rows, DIM), dim=1)


def step(spread: Tensor | None = None, group: int = 0, images: Tensor | None = None) -> Step:
    descriptor = unit().requires_grad_()
    return Step(descriptor, spread, torch.arange(BATCH), PLACES, group, images)


def kappa() -> Tensor:
    return (torch.rand(BATCH) * 50 + 1).requires_grad_()


def test_classification_is_the_large_margin_loss_of_the_groups_prototypes() -> None:
    objective = Classification([4, 3], DIM, LossSettings(scale=20.0, margin=0.3))
    now = step(group=1)
    losses = objective(now)
    assert set(losses) == {"loss"}
    expected = large_margin_cosine_loss(now.descriptor, objective.prototypes[1], PLACES, 20.0, 0.3)
    torch.testing.assert_close(losses["loss"], expected)
    losses["loss"].backward()
    assert objective.prototypes[0].grad is None
    assert objective.prototypes[1].grad is not None
    assert objective.parameters_of(1) == [objective.prototypes[1]]


@pytest.mark.parametrize("vmf_dim", [0, 4])
def test_joint_training_adds_the_weighted_likelihood(vmf_dim: int) -> None:
    objective = Classification([3], DIM, LossSettings(vmf_dim=vmf_dim), weight=0.05)
    now = step(kappa())
    losses = objective(now)
    prototypes = objective.prototypes[0]
    anchors = nn.functional.normalize(prototypes, dim=1)[PLACES]
    assert now.spread is not None
    likelihood = vmf_loss(now.descriptor, anchors, now.spread, vmf_dim or DIM)
    torch.testing.assert_close(losses["vmf"], likelihood)
    torch.testing.assert_close(
        losses["classification"], large_margin_cosine_loss(now.descriptor, prototypes, PLACES)
    )
    torch.testing.assert_close(losses["loss"], losses["classification"] + 0.05 * likelihood)
    losses["vmf"].backward()  # the likelihood alone moves descriptors, prototypes and κ
    assert all(x.grad is not None and x.grad.any() for x in (now.descriptor, prototypes, now.spread))


def test_prototypes_start_xavier_uniform_from_the_seed() -> None:
    sizes = [500, 40]
    first, again, other = (Classification(sizes, 64, LOSS, seed=seed) for seed in (1, 1, 2))
    for number, size in enumerate(sizes):
        bound = math.sqrt(6 / (size + 64))
        values = first.prototypes[number].detach()
        assert values.shape == (size, 64)
        assert values.abs().max() <= bound
        assert values.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
        assert torch.equal(values, again.prototypes[number])
        assert not torch.equal(values, other.prototypes[number])


def test_post_training_updates_only_the_head() -> None:
    anchors = FixedAnchors(torch.randn(BATCH, DIM), torch.arange(BATCH))
    for gaussian in (False, True):
        objective = ToAnchors(anchors, LOSS, gaussian)
        now = Step(unit(), kappa(), torch.arange(BATCH), PLACES, 0)
        assert now.spread is not None
        around = nn.functional.normalize(anchors.matrix, dim=1)
        by_hand = gaussian_nll if gaussian else vmf_loss
        torch.testing.assert_close(objective(now)["loss"], by_hand(now.descriptor, around, now.spread))
        torch.testing.assert_close(objective.cosine(now), (now.descriptor * around).sum(1))
        assert not list(objective.parameters())
        assert objective.parameters_of(0) == []


@hypothesis_settings(deadline=None)
@given(cosine=st.floats(0.05, 0.95), factor=st.floats(0.5, 2.0), dim=st.sampled_from([32, 512]))
def test_the_starting_kappa_is_the_best_constant(cosine: float, factor: float, dim: int) -> None:
    best = Objective().best_constant(cosine, dim)
    at, beside = (
        vmf.nll(torch.tensor(cosine, dtype=torch.float64), torch.tensor(value, dtype=torch.float64), dim)
        for value in (best, best * factor)
    )
    assert at <= beside + 1e-6 * abs(float(beside))


@hypothesis_settings(deadline=None)
@given(mixture=st.floats(0.05, 3.0), factor=st.floats(0.5, 2.0))
def test_the_starting_variance_is_the_best_constant(mixture: float, factor: float) -> None:
    torch.manual_seed(0)
    z, anchors = unit().double(), unit().double()
    z = nn.functional.normalize(z + mixture * anchors, dim=1)
    fixed = FixedAnchors(anchors, torch.arange(BATCH))
    objective = ToAnchors(fixed, LOSS, gaussian=True)
    best = objective.best_constant(float((z * anchors).sum(1).mean()), DIM)
    at, beside = (
        gaussian_nll(z, anchors, torch.full((BATCH,), value, dtype=torch.float64))
        for value in (best, best * factor)
    )
    assert at <= beside + 1e-9


def test_starting_constants_stay_in_range() -> None:
    for cosine in (-1.0, 0.0, 1.0):
        assert 0 < Objective().best_constant(cosine, 512) < 1e5
        anchors = FixedAnchors(torch.ones(1, DIM), torch.zeros(1, dtype=torch.int64))
        assert ToAnchors(anchors, LOSS, gaussian=True).best_constant(cosine, 512) > 0


def test_contrastive_kinds_are_sums_of_their_parts() -> None:
    now = step(kappa())
    z, spread = now.descriptor, now.spread
    assert spread is not None
    similarity = multi_similarity_loss(z, PLACES, multi_similarity_pairs(z, PLACES))
    anchors, _ = batch_centroids(z, PLACES)
    likelihood = vmf_loss(z, anchors, spread)
    plain = Contrastive(LOSS, True, 0.0, gather_batch)(now)
    assert set(plain) == {"loss", "similarity"}
    torch.testing.assert_close(plain["loss"], similarity)
    post = Contrastive(LOSS, False, 1.0, gather_batch)(now)
    assert set(post) == {"loss", "vmf"}
    torch.testing.assert_close(post["loss"], likelihood)
    joint = Contrastive(LOSS, True, 0.02, gather_batch)(now)
    torch.testing.assert_close(joint["loss"], similarity + 0.02 * likelihood)


def test_images_without_a_positive_do_not_count() -> None:
    objective = Contrastive(LOSS, False, 1.0, gather_batch)
    alone = torch.tensor([0, 0, 1, 1, 1, 5, 6, 7])
    now = step(kappa())._replace(labels=alone)
    assert now.spread is not None
    anchors, _ = batch_centroids(now.descriptor, alone)
    expected = vmf_loss(now.descriptor[:5], anchors[:5], now.spread[:5])
    torch.testing.assert_close(objective(now)["loss"], expected)
    nobody = objective(now._replace(labels=torch.arange(BATCH)))["loss"]
    nobody.backward()
    assert float(nobody.detach()) == 0


def test_bayesian_triplets_take_the_settings() -> None:
    now = step((torch.rand(BATCH) + 0.1).requires_grad_())
    assert now.spread is not None
    losses = BayesianTriplet(LossSettings(triplet_margin=0.1, kl_weight=0.5), gather_batch)(now)
    torch.testing.assert_close(
        losses["loss"], bayesian_triplet_loss(now.descriptor, now.spread, PLACES, 0.1, 0.5)
    )
    assert BayesianTriplet(LOSS, gather_batch).best_constant(0.5, 512) == 1 / 512


@pytest.mark.parametrize("squared", [False, True])
def test_distillation_follows_a_teacher_that_nobody_trains_or_saves(squared: bool) -> None:
    teacher = PlaceModel.create("resnet_tiny", DIM, "none").train()
    objective = Distillation(teacher, LossSettings(squared=squared))
    objective.train()
    images = torch.randn(BATCH, 3, 32, 32)
    now = step(torch.rand(BATCH, DIM).requires_grad_(), images=images)
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    loss = objective(now)["loss"]
    loss.backward()
    assert now.spread is not None
    torch.testing.assert_close(
        loss, stun_loss(now.descriptor, teacher(images).descriptor, now.spread, squared)
    )
    assert not list(objective.parameters())
    assert not objective.state_dict()
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    for name, value in teacher.state_dict().items():  # BatchNorm's statistics too
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


@pytest.mark.parametrize(
    "objective",
    [
        Classification([3], DIM, LOSS, weight=0.01),
        ToAnchors(FixedAnchors(torch.ones(1, DIM), torch.zeros(BATCH, dtype=torch.int64)), LOSS),
        Contrastive(LOSS, False, 1.0, gather_batch),
        BayesianTriplet(LOSS, gather_batch),
    ],
)
def test_a_model_without_a_head_is_reported(objective: Objective) -> None:
    with pytest.raises(KappaPlaceError, match=r"the model has no head for it\. Set model\.head"):
        objective(step())


def test_a_single_process_gathers_nothing() -> None:
    part = torch.randn(3)
    assert gather_batch(part) is part
