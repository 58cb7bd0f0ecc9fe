"""Training in memory: it learns, κ reaches its optimum, cached features equal the direct way."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kappaplace import vmf
from kappaplace.data.classes import assign_classes
from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.models.place_model import PlaceModel
from kappaplace.training.losses import vmf_loss
from kappaplace.training.quick import (
    cache_features,
    fit_kappa_head,
    image_anchors,
    new_prototypes,
    train_classifier,
    warm_cosine,
)


def coloured_places(places: int = 4, each: int = 12) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """Images whose colour tells the place, with positions 40 m apart."""
    rng = np.random.default_rng(0)
    colours = rng.integers(0, 256, (places, 3, 1, 1))
    place = np.repeat(np.arange(places), each)
    images = np.clip(colours[place] + rng.normal(0, 12, (places * each, 3, 32, 32)), 0, 255).astype(np.uint8)
    return torch.from_numpy(images), np.stack([place * 40.0 + 1, place * 0.0 + 1], 1), np.zeros(len(place))


def plain(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return images.float() / 255


def model(head: str = "mirrored") -> PlaceModel:
    return PlaceModel.create("resnet_tiny", dim=16, head=head, preprocessing=Preprocessing(32, "exact"))


def test_classifier_brings_descriptors_to_their_prototypes() -> None:
    images, positions, heading = coloured_places()
    classes = assign_classes(positions, heading, groups_per_axis=1, groups_per_heading=1)
    net = model()
    prototypes = train_classifier(net, images, classes, steps=40, augment=plain, batch_size=16)
    rows = np.arange(len(images))
    anchors = image_anchors(prototypes, classes, rows)
    with torch.no_grad():
        z = net(net.preprocessing.normalise(images)).descriptor
        all_prototypes = torch.nn.functional.normalize(prototypes[0], dim=1)
    own = (z * anchors).sum(1)
    others = (z @ all_prototypes.T).sum(1) - own
    assert float(own.mean()) > float(others.mean()) / 3 + 0.4
    assert ((z @ all_prototypes.T).argmax(1).numpy() == classes.class_of_image).mean() > 0.95


@pytest.mark.parametrize("head", ["mirrored", "mirrored-tied"])
def test_cached_features_give_the_kappa_of_the_model(head: str) -> None:
    images = coloured_places()[0]
    net = model(head).eval()
    pooled, descriptors = cache_features(net, images, batch_size=7)
    with torch.no_grad():
        output = net(net.preprocessing.normalise(images))
        kappa = net.head.from_pooled(pooled)
    torch.testing.assert_close(kappa, output.kappa, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(descriptors, output.descriptor)


def test_kappa_head_finds_the_best_kappa_of_two_kinds_of_image() -> None:
    """Sharp and noisy features with known cosines to their anchors: κ must approach the optimum of each."""
    net = model()
    generator = torch.Generator().manual_seed(0)
    noisy = torch.arange(400) % 2 == 0
    pooled = torch.rand(400, 192, generator=generator) * 0.1 + noisy[:, None] * 0.5
    anchors = torch.nn.functional.normalize(torch.randn(400, 16, generator=generator), dim=1)
    sideways = torch.randn(400, 16, generator=generator)
    sideways = torch.nn.functional.normalize(
        sideways - (sideways * anchors).sum(1, keepdim=True) * anchors, dim=1
    )
    cosine = torch.where(noisy, 0.3, 0.9)
    descriptors = cosine[:, None] * anchors + (1 - cosine**2).sqrt()[:, None] * sideways
    history = fit_kappa_head(net, pooled, descriptors, anchors, epochs=100, batch_size=50)
    assert history[-1] < history[0]
    with torch.no_grad():
        kappa = net.head.from_pooled(pooled)
    for kind, c in ((noisy, 0.3), (~noisy, 0.9)):
        assert float(kappa[kind].mean()) == pytest.approx(float(vmf.best_kappa(torch.tensor(c), 16)), rel=0.1)
    floor = vmf_loss(descriptors, anchors, vmf.best_kappa(cosine, 16))
    assert history[-1] == pytest.approx(float(floor), rel=0.05)


def test_prototypes_are_xavier_uniform_per_group() -> None:
    _, positions, heading = coloured_places()
    classes = assign_classes(positions, heading, groups_per_axis=2, groups_per_heading=1)
    prototypes = new_prototypes(classes, 16, torch.Generator().manual_seed(0))
    assert [len(p) for p in prototypes] == classes.group_sizes.tolist()
    largest = max(prototypes, key=len)
    assert float(largest.detach().abs().max()) <= np.sqrt(6 / (len(largest) + 16))


def test_learning_rate_rises_then_falls() -> None:
    factors = [warm_cosine(step, 100) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert max(factors) == 1.0
    assert factors[-1] < 0.001


def test_one_class_cannot_be_learnt() -> None:
    images, positions, heading = coloured_places(places=1)
    classes = assign_classes(positions, heading)
    with pytest.raises(KappaPlaceError, match="no two classes"):
        train_classifier(model(), images, classes, steps=1, augment=plain)


def test_post_training_needs_a_mirrored_head() -> None:
    with pytest.raises(KappaPlaceError, match="needs a mirrored head"):
        cache_features(model("linear"), coloured_places()[0])
