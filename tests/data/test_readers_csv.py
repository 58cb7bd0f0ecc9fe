"""A folder of images plus a CSV: whose columns mean what, and which row belongs to which image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kappaplace.data.readers import read_layout
from kappaplace.data.readers.csv_folder import guess_columns
from kappaplace.errors import KappaPlaceError


def images(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 6)).save(root / name)


def test_csv_guesses_columns_and_asks(tmp_path):
    images(tmp_path, "one/a.jpg", "b.jpg")
    text = "File Name;Latitude;Longitude;Yaw;Date;Building Name;Condition;role\n"
    text += "a.jpg;45.75;21.22;10;2020-01-02;Opera;DAY;database\nb.jpg;45.7501;21.22;;;Opera;NIGHT;query\n"
    (tmp_path / "poses.csv").write_text(text, encoding="utf-8-sig")
    asked: list[str] = []
    table = read_layout("csv", tmp_path, ask=lambda words: not asked.append(words))
    assert "lat = 'Latitude'" in asked[0]
    assert "latitude and longitude" in asked[0]
    assert table.paths.tolist() == ["one/a.jpg", "b.jpg"]
    assert table.place.tolist() == [0, 0]
    assert table.condition.tolist() == ["DAY", "NIGHT"]
    assert table.is_query.tolist() == [False, True]
    assert table.positives().counts.tolist() == [1]
    assert table.heading[0] == 10
    with pytest.raises(KappaPlaceError, match="declined"):
        read_layout("csv", tmp_path, ask=lambda words: False)


def test_csv_utm_local_pair_and_unposed(tmp_path):
    images(tmp_path, "a.jpg")
    file = tmp_path / "poses.csv"
    file.write_text("image,easting,northing\na.jpg,551000,4180000\n", encoding="utf-8")
    with pytest.raises(KappaPlaceError, match="need their zone"):
        read_layout("csv", tmp_path)
    assert read_layout("csv", tmp_path, frame="EPSG:32610").positions.tolist() == [[551000, 4180000]]
    file.write_text("image,x,y\na.jpg,-1.5,2\n", encoding="utf-8")
    assert read_layout("csv", tmp_path).positions.tolist() == [[-1.5, 2]]
    file.write_text('image,coordinates\na.jpg,"45.75; 21.22"\n', encoding="utf-8")
    assert read_layout("csv", tmp_path).frame == "EPSG:32634"
    file.write_text("image\na.jpg\n", encoding="utf-8")
    assert not read_layout("csv", tmp_path).posed.any()


def test_csv_named_columns_and_errors(tmp_path):
    images(tmp_path, "a.jpg", "x/b.jpg", "y/b.jpg")
    file = tmp_path / "poses.csv"
    file.write_text("f,lat,lon,B\na.jpg,1,2,3\n", encoding="utf-8")
    with pytest.raises(KappaPlaceError, match="has no column of file names"):
        read_layout("csv", tmp_path)
    assert read_layout("csv", tmp_path, columns="path=f,heading=B").heading[0] == 3
    with pytest.raises(KappaPlaceError, match="one of the meanings path"):
        read_layout("csv", tmp_path, columns="path=g")
    for name in ("b.jpg", "none.jpg"):  # twice below the folder, or nowhere
        file.write_text(f"file,lat,lon\n{name},1,2\n", encoding="utf-8")
        with pytest.raises(KappaPlaceError, match="must name exactly one image"):
            read_layout("csv", tmp_path)
    file.write_text("file,lat,lon\na.jpg,one,2\n", encoding="utf-8")
    with pytest.raises(KappaPlaceError, match="'one' is not a number"):
        read_layout("csv", tmp_path)


def test_csv_rows_that_repeat_an_image_are_left_out(tmp_path):
    images(tmp_path, "a.jpg")
    (tmp_path / "p.csv").write_text("file,x,y\na.jpg,1,2\na.jpg,3,4\n", encoding="utf-8")
    asked: list[str] = []
    table = read_layout("csv", tmp_path, ask=lambda words: not asked.append(words))
    assert table.positions.tolist() == [[1, 2]]
    assert "1 rows repeat an image" in asked[0]


def test_best_name_wins():
    assert guess_columns(["lon", "name", "path", "LAT"])["path"] == "path"


def read_csv(folder: Path, text: str, **options: str):
    (folder / "poses.csv").write_text(text, encoding="utf-8")
    return read_layout("csv", folder, **options)


def test_a_folder_that_the_csv_states_is_never_ignored(tmp_path):
    images(tmp_path, "cam1/z.jpg", "cam1/a.jpg")
    with pytest.raises(KappaPlaceError, match=r"line 3: 'cam2/z.jpg' must name exactly one image"):
        read_csv(tmp_path, "file,x,y\ncam1/a.jpg,1,2\ncam2/z.jpg,3,4\n")


def test_names_that_are_the_end_of_a_path_are_matched_and_counted(tmp_path):
    root = tmp_path / "drive"
    images(root, "day/cam1/z.jpg", "day/cam2/z.jpg", "day/cam2/b.jpg")
    asked: list[str] = []
    text = "file,x,y\ncam1/z.jpg,1,2\n/home/anna/drive/day/cam2/z.jpg,3,4\n.\\day\\cam2\\b.jpg,5,6\n"
    table = read_csv(root, text, ask=lambda words: not asked.append(words))
    assert table.paths.tolist() == ["day/cam1/z.jpg", "day/cam2/z.jpg", "day/cam2/b.jpg"]
    assert "2 names matched the end of a path" in asked[0]
    images(root, "z.jpg")  # a name without folder means the image beside the CSV, not one of the deeper ones
    assert read_csv(root, "file,x,y\nz.jpg,1,2\n").paths.tolist() == ["z.jpg"]
    with pytest.raises(
        KappaPlaceError, match="must name exactly one image"
    ):  # below another folder, in another disk
        read_csv(root, "file,x,y\nwalk/z.jpg,1,2\n")


def test_hdop_is_no_accuracy(tmp_path):
    images(tmp_path, "a.jpg")
    assert read_csv(tmp_path, "file,x,y,hdop\na.jpg,1,2,0.8\n").accuracy is None
    assert read_csv(tmp_path, "file,x,y,hacc\na.jpg,1,2,0.8\n").accuracy[0] == pytest.approx(0.8)


def test_named_columns_decide_the_coordinates(tmp_path):
    images(tmp_path, "a.jpg")
    text = "file,lat,lon,x,y\na.jpg,48.85,2.35,1,2\n"
    assert read_csv(tmp_path, text).frame == "EPSG:32631"
    assert read_csv(tmp_path, text, columns="x=x,y=y").positions.tolist() == [[1, 2]]
    assert read_csv(tmp_path, text, columns="lat=,lon=").positions.tolist() == [[1, 2]]
    assert np.isnan(read_csv(tmp_path, text, columns="x=,y=,lat=,lon=").positions).all()
    with pytest.raises(KappaPlaceError, match="two kinds of coordinates"):
        read_csv(tmp_path, text, columns="x=x,y=y,lat=lat")


@pytest.mark.parametrize(
    ("text", "columns", "words"),
    [
        ("file,lat\na.jpg,1\n", "", r"column for lat \(lat\) but none for lon"),
        ("file,y\na.jpg,1\n", "", r"column for y \(y\) but none for x"),
        ("file,lat,lon\na.jpg,1,2\n", "lat", "columns=lat has no column"),
        ("file,lat,lon\na.jpg,1,2\n", "lat=lon,lon=", "none for lon"),
        ("file,x,y\na.jpg,1,2\nb.jpg,one,2\n", "", "poses.csv line 3, column x: 'one' is not a number"),
        ("file,x,y,yaw\na.jpg,1,2,N\n", "", "line 2, column yaw: 'N' is not a number"),
        (
            "file,split\na.jpg,train\nb.jpg,val\n",
            "",
            "line 3, column split: 'val' must be query, reference",
        ),
        ("file,gps\na.jpg,Paris\n", "", "line 2, column gps: 'Paris' must be a latitude and longitude"),
        ("file,x,y\n,1,2\n", "", "line 2: '' must name exactly one image"),
    ],
)
def test_what_a_csv_gets_wrong_is_told_with_its_place(tmp_path, text, columns, words):
    images(tmp_path, "a.jpg", "b.jpg")
    with pytest.raises(KappaPlaceError, match=words):
        read_csv(tmp_path, text, columns=columns)


def test_roles(tmp_path):
    images(tmp_path, "a.jpg", "b.jpg", "c.jpg", "d.jpg")
    text = "file,role\na.jpg,Query\nb.jpg,database\nc.jpg,1\nd.jpg,\n"
    assert read_csv(tmp_path, text).is_query.tolist() == [True, False, True, False]
    assert not read_csv(tmp_path, text, columns="query=").is_query.any()


def test_seconds_that_look_like_years(tmp_path):
    images(tmp_path, "a.jpg", "b.jpg")
    table = read_csv(tmp_path, "file,t\na.jpg,1898\nb.jpg,1999\n")
    assert table.timestamp.tolist() == [1898, 1999]
