"""Images of a sequence from folders, videos and bags."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kappaplace.data import is_stream, sequence_images
from kappaplace.errors import KappaPlaceError
from tests.data.test_readers_film import write_bag


def test_a_folder_is_read_in_natural_order(tmp_path: Path) -> None:
    for name in ("frame10.png", "frame2.png"):
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    frames = list(sequence_images([tmp_path]))
    assert [Path(frame.name).name for frame in frames] == ["frame2.png", "frame10.png"]
    assert all(frame.image == frame.name and frame.time is None for frame in frames)
    files = [str(tmp_path / "frame10.png"), str(tmp_path / "frame2.png")]
    assert [frame.name for frame in sequence_images(files)] == files


def test_a_video_is_sampled_by_time(tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    writer = cv2.VideoWriter(str(tmp_path / "walk.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 10.0, (32, 24))
    for number in range(25):
        writer.write(np.full((24, 32, 3), (0, 0, 10 * number), np.uint8))  # BGR
    writer.release()
    frames = list(sequence_images([tmp_path / "walk.avi"], every=0.5, start=1000.0))
    assert [frame.time for frame in frames] == pytest.approx([1000.0, 1000.5, 1001.0, 1001.5, 1002.0])
    assert {frame.time for frame in sequence_images([tmp_path / "walk.avi"])} == {None}
    assert frames[2].name == "walk.avi/0000010"
    red, _, blue = np.asarray(frames[2].image)[12, 16].tolist()
    assert abs(red - 100) < 12 > blue


@pytest.mark.parametrize("kind", ["ros1", "ros2"])
def test_a_bag_is_sampled_by_its_stamps(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("rosbags")
    frames = list(sequence_images([write_bag(tmp_path, kind, "odometry")], every=0.5))
    assert [frame.time for frame in frames] == pytest.approx([1000.0, 1000.5, 1001.0, 1001.5])
    image = frames[0].image
    assert isinstance(image, Image.Image)
    assert image.convert("RGB").getpixel((0, 0)) == (0, 20, 250)


def test_what_is_no_sequence(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    for source, message in (
        (tmp_path / "none", "no sequence"),
        (tmp_path / "notes.txt", "not a folder of images"),
        (tmp_path / "broken.mp4", "cannot be read as a video"),
    ):
        with pytest.raises(KappaPlaceError, match=message):
            list(sequence_images([source]))
    with pytest.raises(KappaPlaceError, match="no source"):
        sequence_images([])
    assert is_stream("0")
    assert is_stream("rtsp://camera/1")
    assert not is_stream("drive/")
