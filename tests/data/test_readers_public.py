"""Each public layout, built in miniature."""

from __future__ import annotations

import csv
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kappaplace.data.readers import READERS, read_layout
from kappaplace.data.readers.layout import unix_time
from kappaplace.errors import KappaPlaceError


def picture(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 6)).save(file)


def write_csv(file: Path, rows: list[dict[str, object]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, ["", *rows[0]])
        writer.writeheader()
        writer.writerows({"": i} | row for i, row in enumerate(rows))


def at_name(
    east: float, north: float, heading: str = "", time: str = "", note: str = "", zone: str = "10@S"
) -> str:
    return f"@{east:010.2f}@{north:010.2f}@{zone}@037.77@-122.42@pano@@{heading}@@@@{time}@{note}@.jpg"


def test_at_names_with_splits_and_several_query_folders(tmp_path):
    test = tmp_path / "images" / "test"
    picture(test / "database" / "block" / at_name(550000, 4180000, heading="090", time="201305"))
    picture(test / "database" / at_name(550030, 4180000))
    picture(test / "queries_v1" / at_name(550010, 4180000, note="day"))
    picture(test / "queries_night" / at_name(550100, 4180000))
    table = read_layout("at-names", tmp_path, split="test", queries="v1")
    assert (len(table.query_rows), len(table.reference_rows)) == (1, 2)
    assert table.positives().of(0).tolist() == [0, 1]
    assert table.frame == "EPSG:32610"
    row = int(np.flatnonzero(table.heading == 90)[0])
    assert table.timestamp[row] == unix_time("2013-05-01")
    assert table.condition[table.query_rows[0]] == "day"
    assert all(Path(p).is_file() for p in table.image_paths())
    assert read_layout(
        "at-names", tmp_path, split="test", queries="queries_night"
    ).positives().counts.tolist() == [0]
    with pytest.raises(KappaPlaceError, match="queries_night, queries_v1"):
        read_layout("at-names", tmp_path, split="test")
    with pytest.raises(KappaPlaceError, match="Choose one of test"):
        read_layout("at-names", tmp_path)
    with pytest.raises(KappaPlaceError, match="no split 'val'"):
        read_layout("at-names", tmp_path, split="val")


def test_at_names_made_up_coordinates_gallery_and_flat_folder(tmp_path):
    picture(tmp_path / "gallery" / "@0@0000.0@@@@@0@@@@@@@@.jpg")
    picture(tmp_path / "queries" / "@0@0023.8@@@@@10@@@@@@@@.jpg")
    table = read_layout("at-names", tmp_path)
    assert table.frame == "local"
    assert table.positives().counts.tolist() == [1]
    flat = read_layout("at-names", tmp_path / "gallery")
    assert (len(flat.query_rows), len(flat.reference_rows)) == (0, 1)
    picture(tmp_path / "queries" / "IMG_1.jpg")
    with pytest.raises(KappaPlaceError, match="does not follow"):
        read_layout("at-names", tmp_path)


def test_at_names_southern_hemisphere(tmp_path):
    picture(tmp_path / at_name(502000, 6955000, zone="56@J"))
    assert read_layout("at-names", tmp_path).frame == "EPSG:32756"


def test_pitts_mat(tmp_path):
    from scipy.io import savemat

    struct = {
        "whichSet": "test",
        "dbImageFns": np.array([["000/a.jpg"], ["000/b.jpg"]], dtype=object),
        "utmDb": np.array([[585000.0, 585100.0], [4477000.0, 4477000.0]]),
        "qImageFns": np.array([["001/q.jpg"]], dtype=object),
        "utmQ": np.array([[585010.0], [4477000.0]]),
        "numImages": 2.0,
        "numQueries": 1.0,
        "posDistThr": 25.0,
    }
    savemat(tmp_path / "pitts30k_test.mat", {"dbStruct": struct})
    savemat(tmp_path / "pitts30k_val.mat", {"other": 1})
    table = read_layout("pitts-mat", tmp_path, split="test")
    assert table.paths.tolist() == ["000/a.jpg", "000/b.jpg", "queries_real/001/q.jpg"]
    assert table.positives().of(0).tolist() == [0]
    assert (table.frame, table.radius) == ("EPSG:32617", 25.0)
    with pytest.raises(KappaPlaceError, match="exactly one"):
        read_layout("pitts-mat", tmp_path)
    with pytest.raises(KappaPlaceError, match="no complete dbStruct"):
        read_layout("pitts-mat", tmp_path, mat="pitts30k_val.mat")


def msls_city(root: Path, city: str, lat: float, lon: float, utm: tuple[float, float]) -> None:
    for role, count in (("database", 3), ("query", 4)):
        folder = root / "train_val" / city / role
        keys = [f"{city}{role[0]}{i}" for i in range(count)]
        raw, post, subtask, sequence = [], [], [], []
        for i, key in enumerate(keys):
            pano = role == "query" and i == 3
            raw.append(
                {
                    "key": key,
                    "lon": lon,
                    "lat": lat,
                    "ca": 10.0 * i,
                    "captured_at": "2017-05-31",
                    "pano": pano,
                }
            )
            east = utm[0] + (1000.0 if role == "query" and i == 2 else 10.0 * i)
            post.append(
                {"key": key, "easting": east, "northing": utm[1], "unique_cluster": 1, "night": i == 1}
            )
            subtask.append({"key": key, "all": not (role == "query" and i == 1), "s2w": False})
            sequence.append({"key": key, "sequence_key": "s", "frame_number": i + 5})
        write_csv(folder / "raw.csv", raw)
        write_csv(folder / "postprocessed.csv", post)
        write_csv(folder / "subtask_index.csv", subtask)
        write_csv(folder / "seq_info.csv", sequence)


def test_msls_all_and_subtask_queries(tmp_path):
    msls_city(tmp_path, "cph", 55.68, 12.57, (347000.0, 6172000.0))
    msls_city(tmp_path, "sf", 37.77, -122.42, (551000.0, 4180000.0))
    whole = read_layout("msls", tmp_path)
    assert (len(whole.query_rows), len(whole.reference_rows)) == (6, 6)  # panoramas are left out
    assert whole.frame == "EPSG:32610,EPSG:32633"
    assert whole.positives().counts.tolist() == [3, 3, 0, 3, 3, 0]
    assert set(whole.condition.tolist()) == {"cph day s", "cph night s", "sf day s", "sf night s"}
    assert whole.frame_number.tolist()[:3] == [5, 6, 7]
    assert whole.paths[0] == "train_val/cph/database/images/cphd0.jpg"
    marked = read_layout("msls", tmp_path, queries="subtask")
    assert (len(marked.query_rows), len(marked.reference_rows)) == (
        2,
        6,
    )  # one a city: marked and with a positive
    assert read_layout("msls", tmp_path, cities="sf").frame == "EPSG:32610"
    with pytest.raises(KappaPlaceError, match="no city 'rome'"):
        read_layout("msls", tmp_path, cities="rome")
    with pytest.raises(KappaPlaceError, match="no subtask"):
        read_layout("msls", tmp_path, queries="subtask", subtask="x2y")


def test_msls_test_cities_have_no_poses(tmp_path):
    for role in ("query", "database"):
        rows = [{"key": f"{role}{i}", "all": True} for i in range(2)]
        write_csv(tmp_path / "test" / "miami" / role / "subtask_index.csv", rows)
    table = read_layout("msls", tmp_path, cities="miami")
    assert len(table) == 4
    assert not table.posed.any()


def test_amstertime_lists_and_folders(tmp_path):
    rows = [
        ("new/0000.png", "old/0000.jpg", 1),
        ("new/0000.png", "old/0001.jpg", 0),
        ("new/0001.png", "old/0001.jpg", 1),
    ]
    lines = ["image1,image2,y", *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "verification.csv").write_text("\n".join(lines), encoding="utf-8")
    table = read_layout("amstertime-csv", tmp_path)
    assert table.paths.tolist() == ["new/0000.png", "new/0001.png", "old/0000.jpg", "old/0001.jpg"]
    assert [table.positives().of(q).tolist() for q in (0, 1)] == [[0], [1]]
    assert str(table.neighborhood) == "self"
    assert read_layout("amstertime-csv", tmp_path, queries="new").paths[0] == "old/0000.jpg"
    with pytest.raises(KappaPlaceError, match=r"verification_test\.csv is missing"):
        read_layout("amstertime-csv", tmp_path, split="test")
    folders = tmp_path / "plain"
    for stem in ("0000", "0001"):
        picture(folders / "new" / f"{stem}.png")
        picture(folders / "old" / f"{stem}.jpg")
    assert read_layout("amstertime-csv", folders).content_hash == table.content_hash
    picture(folders / "old" / "0002.jpg")
    with pytest.raises(KappaPlaceError, match="0002 has no partner"):
        read_layout("amstertime-csv", folders)


def test_gsv_cities(tmp_path):
    def row(city: str, place: int, lat: float, lon: float, pano: str) -> dict[str, object]:
        return {
            "place_id": place, "year": 2016, "month": 7, "northdeg": 42,
            "city_id": city, "lat": lat, "lon": lon, "panoid": pano,
        }  # fmt: skip

    london = [
        row("London", 1, 51.5, -0.12, "p1"),
        row("London", 1, 51.5, -0.12, "p2"),
        row("London", 2, 51.6, -0.1, "p3"),
    ]
    write_csv(tmp_path / "Dataframes" / "London.csv", london)
    write_csv(tmp_path / "Dataframes" / "Boston.csv", [row("Boston", 1, 42.36, -71.06, "p4")])
    table = read_layout("gsv-cities", tmp_path)
    assert table.place.tolist() == [1, 100001, 100001, 100002]
    assert table.paths[1] == "Images/London/London_0000001_2016_07_042_51.5_-0.12_p1.jpg"
    assert table.heading[0] == 42
    assert table.timestamp[0] == unix_time("2016-07-01")
    assert not table.is_query.any()
    assert len(read_layout("gsv-cities", tmp_path, min_images="2")) == 2
    assert read_layout("gsv-cities", tmp_path, cities="London").frame == "EPSG:32630"


def vpr_bench_folder(root: Path, rows: list[list[object]]) -> np.ndarray:
    for i in range(12):
        picture(root / "ref" / f"{i}.jpg")
    for i in range(3):
        picture(root / "query" / f"{i}.jpg")
    truth = np.empty((len(rows), 2), dtype=object)
    for i, (query, right) in enumerate(rows):
        truth[i, 0], truth[i, 1] = query, right
    return truth


ROWS: list[list[object]] = [[0, [0, 1]], [1, np.array([9, 10, 11])], [2, [np.int64(2)]]]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_vpr_bench_pickled_ground_truth_is_read_without_pickle(tmp_path, protocol):
    truth = vpr_bench_folder(tmp_path, ROWS)
    with (tmp_path / "ground_truth_new.npy").open("wb") as stream:
        np.lib.format.write_array_header_1_0(
            stream, {"descr": "|O", "fortran_order": False, "shape": truth.shape}
        )
        pickle.dump(truth, stream, protocol=protocol)
    table = read_layout("vpr-bench", tmp_path)
    assert [table.positives().of(q).tolist() for q in range(3)] == [[0, 1], [9, 10, 11], [2]]
    assert table.paths[10] == "ref/10.jpg"  # natural order
    assert str(table.neighborhood) == "frames:1"
    assert str(read_layout("vpr-bench", tmp_path, neighborhood="frames:5").neighborhood) == "frames:5"


def test_vpr_bench_neighborhood_is_the_longest_unbroken_run(tmp_path):
    """A place seen again at the end of the route does not make the whole route one place."""
    rows: list[list[object]] = [[0, [0, 1, 2, 3, 4, 11]], [1, [0, 10]], [2, [5]]]
    np.save(tmp_path / "ground_truth_new.npy", vpr_bench_folder(tmp_path, rows))
    assert str(read_layout("vpr-bench", tmp_path).neighborhood) == "frames:2"
    rows[0][1] = [0, 2, 11]
    np.save(tmp_path / "ground_truth_new.npy", vpr_bench_folder(tmp_path, rows))
    assert str(read_layout("vpr-bench", tmp_path).neighborhood) == "self"


def test_vpr_bench_as_numpy_saves_it(tmp_path):
    np.save(tmp_path / "ground_truth_new.npy", vpr_bench_folder(tmp_path, ROWS))
    assert read_layout("vpr-bench", tmp_path).positives().counts.tolist() == [2, 3, 1]
    np.save(tmp_path / "plain.npy", np.array([[0, 5], [1, 6], [2, 7]]))
    plain = read_layout("vpr-bench", tmp_path, ground_truth="plain.npy")
    assert [plain.positives().of(q).tolist() for q in range(3)] == [[5], [6], [7]]
    assert str(plain.neighborhood) == "self"


def test_gt_json(tmp_path):
    for i in range(3):
        picture(tmp_path / "ref" / f"{i}.jpg")
    picture(tmp_path / "query" / "0.jpg")
    (tmp_path / "gt.json").write_text(
        json.dumps({"positives": [[1, 2]], "tolerance_frames": 2}), encoding="utf-8"
    )
    table = read_layout("gt-json", tmp_path)
    assert table.positives().of(0).tolist() == [1, 2]
    assert str(table.neighborhood) == "frames:2"
    (tmp_path / "gt.json").write_text(json.dumps({"positives": [[1]]}), encoding="utf-8")
    assert str(read_layout("gt-json", tmp_path).neighborhood) == "self"
    for text, words in (
        ('{"positives": [[3]]}', "between 0 and 2"),
        ('{"positives": [[1], [1]]}', "got 2"),
        ("{", "JSON"),
    ):
        (tmp_path / "gt.json").write_text(text, encoding="utf-8")
        with pytest.raises(KappaPlaceError, match=words):
            read_layout("gt-json", tmp_path)
    (tmp_path / "gt.json").unlink()
    with pytest.raises(KappaPlaceError, match=r"gt\.json is missing"):
        read_layout("gt-json", tmp_path)


def test_registry_answers_for_every_layout(tmp_path):
    for reader in READERS.values():
        assert reader.summary
        with pytest.raises(KappaPlaceError, match=r"^There is no (folder|bag) .*nowhere"):
            read_layout(reader.name, tmp_path / "nowhere")
        with pytest.raises(KappaPlaceError, match="has no option"):
            read_layout(reader.name, tmp_path, nonsense=1)
    with pytest.raises(KappaPlaceError, match=r"Unknown layout 'x'\. Choose from: at-names"):
        read_layout("x", tmp_path)
    with pytest.raises(KappaPlaceError, match="must be a float"):
        read_layout("at-names", tmp_path, radius="wide")
