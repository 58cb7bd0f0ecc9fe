"""The batch plan: which group, images and views; the same for every division into steps."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kappaplace.errors import KappaPlaceError
from kappaplace.training.batches import BatchPlan, Items, view_key
from kappaplace.training.places import PlaceClasses, assign_classes, classes_of_places


def classes(places: int = 12, images: int = 5) -> PlaceClasses:
    """Two groups of places on a line, images in a shuffled order."""
    place_numbers = np.random.default_rng(0).permutation(np.repeat(np.arange(places), images))
    positions = np.stack([place_numbers * 10.0 + 5, np.full(len(place_numbers), 5.0)], axis=1)
    return assign_classes(positions, groups_per_axis=2, min_images=1)


def plan(**options: int) -> BatchPlan:
    place_classes = classes()
    groups = tuple(place_classes.group(number) for number in np.flatnonzero(place_classes.group_sizes))
    return BatchPlan(groups, **{"batch_size": 6, "iterations": 5, **options})


def joined(parts: list[Items]) -> Items:
    return Items(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


@hypothesis_settings(deadline=None)
@given(
    epoch=st.integers(0, 7),
    cuts=st.tuples(*[st.integers(0, 5)] * 2).map(sorted),
    seed=st.integers(0, 5),
    per_place=st.sampled_from([0, 2, 3]),
    views=st.sampled_from([0, 1, 3]),
)
def test_an_epoch_in_parts_is_the_epoch(
    epoch: int, cuts: list[int], seed: int, per_place: int, views: int
) -> None:
    whole = plan(seed=seed, images_per_place=per_place, views=views)
    edges = list(dict.fromkeys([0, *cuts, 5]))
    parts = [whole.items(epoch, a, b) for a, b in pairwise(edges)]
    for column, expected in zip(joined(parts), whole.items(epoch, 0, 5), strict=True):
        np.testing.assert_array_equal(column, expected)


def test_groups_take_turns_and_go_on_where_they_were() -> None:
    whole = plan(iterations=3, batch_size=5)  # 15 items an epoch: two and a half passes over 6 places
    assert [whole.group_of(epoch) for epoch in range(4)] == [0, 1, 0, 1]
    for number, group in enumerate(whole.groups):
        turns = [whole.items(epoch, 0, 3) for epoch in (number, number + 2)]
        rows = np.concatenate([turn.rows for turn in turns])
        labels = np.concatenate([turn.labels for turn in turns])
        np.testing.assert_array_equal(group.class_of_image[rows], group.classes[labels])
        for start in range(0, len(labels), len(group)):  # every place once a pass, also across epochs
            assert sorted(labels[start : start + len(group)]) == list(range(len(group)))
        assert turns[0].rows.tolist() != turns[1].rows.tolist()


def test_a_pass_may_end_within_a_batch() -> None:
    whole = plan(batch_size=4, iterations=3)  # 12 items: two passes over 6 places, cut at 4 and 8
    labels = whole.items(0, 0, 3).labels
    assert sorted(labels[:6]) == sorted(labels[6:]) == list(range(6))


def test_contrastive_batches_are_places_times_images() -> None:
    whole = plan(images_per_place=3)
    for step in range(5):
        items = whole.items(0, step, step + 1)
        blocks = items.labels.reshape(2, 3)
        assert (blocks == blocks[:, :1]).all()
        assert blocks[0, 0] != blocks[1, 0]
        assert len(set(items.rows.tolist())) == 6


def test_numbered_views_have_keys_of_their_own_and_all_come_up() -> None:
    whole = plan(iterations=200, views=4, seed=3)
    items = whole.items(0, 0, 200)
    np.testing.assert_array_equal(items.keys, view_key(3, items.rows, items.views))
    shares = np.bincount(items.views, minlength=4) / len(items.views)
    assert len(shares) == 4
    np.testing.assert_allclose(shares, 0.25, atol=0.05)  # four standard deviations of 1,200 draws
    pairs = set(zip(items.rows.tolist(), items.views.tolist(), strict=True))
    assert len(pairs) == len(set(items.keys.tolist())) == 30 * 4


def test_unnumbered_views_are_new_at_every_visit() -> None:
    whole = plan(views=0)
    items = joined([whole.items(epoch, 0, 5) for epoch in range(6)])
    assert set(items.views.tolist()) == {-1}
    assert len(set(items.keys.tolist())) == len(items.keys) == 180


def test_seeds_differ_and_repeat() -> None:
    first, again, other = (plan(seed=seed, views=3).items(0, 0, 5) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.rows, again.rows)
    np.testing.assert_array_equal(first.keys, again.keys)
    assert first.rows.tolist() != other.rows.tolist()
    assert not set(first.keys.tolist()) & set(other.keys.tolist())


def test_part_takes_all_columns() -> None:
    items = plan(views=2).items(0, 0, 1)
    for column, whole in zip(items.part(slice(2, 4)), items, strict=True):
        np.testing.assert_array_equal(column, whole[2:4])


def test_invalid_batches_are_reported() -> None:
    group = classes_of_places(np.repeat(np.arange(3), 4), 1).all()
    with pytest.raises(KappaPlaceError, match="no place to train on"):
        BatchPlan((), 4, 1)
    with pytest.raises(KappaPlaceError, match=r"Group 0 has 12 images, .* 16\. Set classes\.by=place"):
        BatchPlan((group,), 16, 1)
    with pytest.raises(KappaPlaceError, match=r"must be a multiple of optimizer\.images_per_place=4, got 6"):
        BatchPlan((group,), 6, 1, images_per_place=4)
    with pytest.raises(KappaPlaceError, match="Use fewer places"):
        BatchPlan((group,), 8, 1, images_per_place=2).items(0, 0, 1)
