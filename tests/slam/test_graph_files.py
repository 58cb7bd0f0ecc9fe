from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kappaplace.data.poses import as_spatial
from kappaplace.data.readers.trajectory import read_poses
from kappaplace.slam.graph_files import write_g2o, write_json_lines, write_tum
from tests.slam.synthetic import closure

WAY = np.column_stack([np.arange(6.0), np.zeros(6), np.linspace(0, 1, 6)])


def test_tum_holds_every_pose(tmp_path: Path) -> None:
    write_tum(tmp_path / "a.tum", WAY, np.full(6, np.nan))
    read = read_poses(tmp_path / "a.tum")
    assert np.allclose(read.poses, WAY, atol=1e-8)
    assert read.time.tolist() == [0, 1, 2, 3, 4, 5]


def test_only_accepted_closures_enter_the_graph(tmp_path: Path) -> None:
    closures = [closure(0, 4), closure(1, 5, accepted=False, reason="probability")]
    write_g2o(tmp_path / "a.g2o", WAY, WAY, closures)
    lines = (tmp_path / "a.g2o").read_text().splitlines()
    assert sum(line.startswith("VERTEX_SE2") for line in lines) == 6
    edges = [line.split() for line in lines if line.startswith("EDGE_SE2")]
    assert [edge[1:3] for edge in edges] == [
        ["0", "1"],
        ["1", "2"],
        ["2", "3"],
        ["3", "4"],
        ["4", "5"],
        ["0", "4"],
    ]
    assert [float(number) for number in edges[-1][6:]] == pytest.approx([100, 0, 0, 100, 0, 100])


@pytest.mark.parametrize("spatial", [False, True])
def test_gtsam_reads_what_we_write(tmp_path: Path, spatial: bool) -> None:
    gtsam = pytest.importorskip("gtsam")
    way = as_spatial(WAY) if spatial else WAY
    write_g2o(tmp_path / "a.g2o", way, way, [closure(0, 4, 7 if spatial else 3)])
    graph, values = gtsam.readG2o(str(tmp_path / "a.g2o"), spatial)
    assert graph.size() == 6
    pose = values.atPose3(3) if spatial else values.atPose2(3)
    assert pose.x() == pytest.approx(3.0)


def test_json_lines_hold_every_proposal(tmp_path: Path) -> None:
    closures = [
        closure(0, 4),
        closure(1, 5, accepted=False, reason="probability", concentration=float("nan")),
    ]
    write_json_lines(tmp_path / "c.jsonl", closures, [f"{row}.jpg" for row in range(6)])
    first, second = (json.loads(line) for line in (tmp_path / "c.jsonl").read_text().splitlines())
    assert first["query_name"] == "4.jpg"
    assert first["accepted"]
    assert second["concentration"] is None
    assert second["reason"] == "probability"
    assert first["relative"] == [0.0, 0.0, 0.0]
