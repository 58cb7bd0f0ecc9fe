"""Samplers: seeded, resumable at once, and the same order however many processes share it."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaplace.errors import KappaPlaceError
from kappaplace.training.batches import ClassSampler, PlaceBatchSampler
from kappaplace.training.places import PlaceGroup, assign_classes


def group(counts: list[int]) -> PlaceGroup:
    positions = np.repeat(np.arange(len(counts)) * 10.0 + 5, counts)
    shuffled = np.random.default_rng(0).permutation(positions)
    return assign_classes(np.stack([shuffled, np.zeros_like(shuffled)], 1), min_images=1).all()


COUNTS = st.lists(st.integers(1, 9), min_size=1, max_size=30)
SEED = st.integers(0, 2**63)


@settings(deadline=None)
@given(COUNTS, SEED)
def test_each_pass_visits_every_class_once(counts: list[int], seed: int) -> None:
    sampler = ClassSampler(group(counts), seed)
    for _ in range(3):
        labels = sampler.group.labels(sampler.take(len(counts)))
        assert sorted(labels) == list(range(len(counts)))


@settings(deadline=None)
@given(COUNTS, SEED, st.integers(0, 200), st.integers(1, 50))
def test_resumes_where_it_stopped(counts: list[int], seed: int, before: int, after: int) -> None:
    sampler = ClassSampler(group(counts), seed)
    sampler.take(before)
    state = json.loads(json.dumps(sampler.state_dict()))
    again = ClassSampler(group(counts), seed=123)
    again.load_state_dict(state)
    np.testing.assert_array_equal(sampler.take(after), again.take(after))


@settings(deadline=None)
@given(COUNTS, SEED, st.integers(1, 5), st.integers(1, 20))
def test_processes_together_see_the_order_of_one(counts: list[int], seed: int, world: int, each: int) -> None:
    whole = ClassSampler(group(counts), seed).take(world * each)
    parts = [ClassSampler(group(counts), seed, rank=r, world_size=world).take(each) for r in range(world)]
    np.testing.assert_array_equal(np.stack(parts, axis=1).ravel(), whole)


def test_resumes_with_another_number_of_processes() -> None:
    places = group([3] * 11)
    two = [ClassSampler(places, 5, rank=r, world_size=2) for r in range(2)]
    for sampler in two:
        sampler.take(9)
    assert two[0].state_dict() == two[1].state_dict()
    three = [ClassSampler(places, rank=r, world_size=3) for r in range(3)]
    for sampler in three:
        sampler.load_state_dict(two[0].state_dict())
    rest = np.stack([sampler.take(4) for sampler in three], axis=1).ravel()
    np.testing.assert_array_equal(rest, ClassSampler(places, 5).take(18 + 12)[18:])


def test_far_positions_cost_nothing_and_iteration_equals_taking() -> None:
    sampler = ClassSampler(group([4] * 7), 1)
    sampler.load_state_dict({"seed": 1, "position": 10**15, "classes": 7})
    taken = sampler.take(20)
    sampler.position = 10**15
    assert list(itertools.islice(sampler, 20)) == taken.tolist()


def test_seeds_differ_and_images_are_uniform() -> None:
    places = group([5] * 40)
    assert not np.array_equal(ClassSampler(places, 1).take(40), ClassSampler(places, 2).take(40))
    drawn = np.bincount(ClassSampler(places, 3).take(40 * 500), minlength=200)
    assert drawn.min() > 60  # expected 100, standard deviation below 10
    assert drawn.max() < 140


@settings(deadline=None)
@given(COUNTS, SEED, st.integers(1, 8), st.integers(1, 6), st.integers(1, 4))
def test_place_batches(counts: list[int], seed: int, places: int, images: int, world: int) -> None:
    whole = group(counts)
    places = min(places, len(whole))
    batches = list(itertools.islice(PlaceBatchSampler(whole, places, images, seed), 4 * world))
    for batch in batches:
        rows = batch.reshape(places, images)
        labels = whole.labels(batch).reshape(places, images)
        assert (labels == labels[:, :1]).all()
        assert len(set(labels[:, 0])) == places
        for label, members in zip(labels[:, 0], rows, strict=True):
            assert len(set(members)) == images or whole.counts[label] < images
    shards = [PlaceBatchSampler(whole, places, images, seed, rank=r, world_size=world) for r in range(world)]
    shared = [batch for step in zip(*(itertools.islice(s, 4) for s in shards), strict=True) for batch in step]
    np.testing.assert_array_equal(shared, batches)
    again = PlaceBatchSampler(whole, places, images)
    again.load_state_dict(shards[0].state_dict())
    assert again.position == 4 * world
    np.testing.assert_array_equal(
        next(iter(again)), PlaceBatchSampler(whole, places, images, seed).batch(4 * world)
    )


def test_a_pass_of_place_batches_repeats_no_place() -> None:
    whole = group([3] * 13)
    sampler = PlaceBatchSampler(whole, places=4, images=2)
    labels = whole.labels(np.concatenate([sampler.batch(b) for b in range(3)]))[::2]
    assert len(set(labels.tolist())) == 12


def test_what_cannot_be_sampled_is_refused() -> None:
    whole = group([3] * 5)
    with pytest.raises(KappaPlaceError, match="rank must be between 0 and 1, got 2"):
        ClassSampler(whole, rank=2, world_size=2)
    with pytest.raises(KappaPlaceError, match="fewer places"):
        PlaceBatchSampler(whole, places=6, images=2)
    with pytest.raises(KappaPlaceError, match="There is no class"):
        ClassSampler(group([]))
    with pytest.raises(KappaPlaceError, match="4 classes"):
        ClassSampler(whole).load_state_dict({"seed": 0, "position": 0, "classes": 4})
