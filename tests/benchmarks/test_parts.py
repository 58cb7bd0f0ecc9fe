"""The parts of the benchmarks on tiny models: what they count, that they compare the same things."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from cached_pt import measure_training
from exact_search import measure_search
from inference import measure_fidelity
from kappaplace import Embeddings, PlaceModel, Preprocessing
from kappaplace.cli.bench import Rounds, measure_embedding, measure_speed
from metric_loops import METRICS, made_up
from metrics_speed import agree
from overhead import Setting, measure_overhead, models
from train_throughput import measure_steps

CPU = torch.device("cpu")
TINY = Setting("resnet_tiny", 64, CPU, Rounds(2, 1, 1), dim=16)


def test_kappa_costs_as_many_parameters_as_channels_and_one_or_two_more() -> None:
    made = models(TINY)
    count = {name: sum(p.numel() for p in model.parameters()) for name, model in made.items()}
    assert count["tied p"] - count["base"] == 192 + 1
    assert count["own p"] - count["base"] == 192 + 2
    images = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        answers = [model(images) for model in made.values()]
    assert all(torch.equal(answers[0].descriptor, other.descriptor) for other in answers)


def test_overhead_has_a_row_for_each_head_and_each_cost() -> None:
    rows = measure_overhead(TINY)
    assert [row.what.partition(",")[0] for row in rows] == 2 * ["parameters"] + 2 * ["peak memory"] + 4 * [
        "latency"
    ]
    memory = [row for row in rows if row.what.startswith("peak")]
    assert all(1 < row.ratio < 1.01 for row in memory)


def test_speed_and_fidelity(tiny: PlaceModel) -> None:
    rows = measure_speed(tiny, CPU, [1, 2], Rounds(2, 1, 1))
    assert [(row.what, row.unit) for row in rows] == [
        ("latency, eager, batch 1", "ms"),
        ("throughput, eager, batch 2", "images/s"),
    ]
    rows = measure_fidelity(tiny, CPU, queries=4, size=32, district=(1, 30.0))
    assert all(row.met for row in rows)
    assert [row.what for row in rows[2:]] == ["change of R@1", "change of R@5", "change of R@10"]


class Sleeper(nn.Module):
    """A model of known speed."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.weight = seconds, nn.Parameter(torch.zeros(()))
        self.preprocessing = Preprocessing(64, "exact")

    def forward(self, images: torch.Tensor) -> Embeddings:
        time.sleep(self.seconds)
        return Embeddings(torch.ones(len(images), 1))


@pytest.mark.parametrize(("seconds", "slowest"), [(0.0, "decode"), (0.3, "model")])
def test_the_pipeline_names_its_bottleneck(seconds: float, slowest: str) -> None:
    options = {"images": 5, "batch_size": 2, "rounds": 1}
    rows = measure_embedding(Sleeper(seconds), "sleeper", CPU, **options)
    assert rows[0].what == f"disk to descriptors; bottleneck: {slowest}"
    assert rows[0].ratio < 1.1  # the whole is not faster than one of its stages


def test_all_searches_find_the_same() -> None:
    assert {row.peer_name for row in measure_search(300, 5, 16, rounds=1)} >= {"bare product and topk"}


def test_loops_and_metrics_agree() -> None:
    data = made_up(40)
    for task in METRICS:
        if task.name != "smooth ECE":
            agree(task.name, task.ours(data), task.loop(data), task.tolerance)


def test_joint_training_is_timed_by_its_steps() -> None:
    (row,) = measure_steps(CPU, batch=4, steps=2)
    assert row.ours > 0
    assert row.ratio == pytest.approx(row.ours / row.peer)


@pytest.mark.slow
def test_cached_training_is_compared_with_the_direct_loop() -> None:
    (row,) = measure_training(CPU, images=64, epochs=1)
    assert row.ours > 0
    assert row.ratio > 0
