"""Folders that are damaged, foreign or contradict themselves: one sentence each, and no wrong table."""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kappaplace.data.readers import read_layout
from kappaplace.data.readers.layout import list_images
from kappaplace.data.readers.query_ref import load_rows
from kappaplace.errors import KappaPlaceError

Build = Callable[[Path], object]


def picture(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 6)).save(file)


def text(name: str, content: str | bytes, *pictures: str) -> Build:
    def build(root: Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content.encode() if isinstance(content, str) else content)
        for image in pictures:
            picture(root / image)

    return build


def pictures(*names: str) -> Build:
    return lambda root: [picture(root / name) for name in names]


def gt(content: str | bytes | None) -> Build:
    def build(root: Path) -> None:
        pictures("query/0.jpg", "ref/0.jpg", "ref/1.jpg", "ref/2.jpg")(root)
        if content is None:
            (root / "gt.json").mkdir()
        else:
            text("gt.json", content)(root)

    return build


def gpx(first: str, encoding: str = "utf-8") -> Build:
    points = f"<trkpt {first}><time>2024-01-01T00:00:00Z</time></trkpt>"
    points += '<trkpt lat="50" lon="8"><time>2024-01-01T00:00:01Z</time></trkpt>'
    content = f"<gpx><name>M\u00fcnchen</name><trk><trkseg>{points}</trkseg></trk></gpx>".encode(encoding)

    def build(root: Path) -> None:
        text("a.gpx", content)(root)
        text("a.avi", "")(root)

    return build


def mat(cut: int = 0, **changes: object) -> Build:
    def build(root: Path) -> None:
        from scipy.io import savemat

        struct = {
            "dbImageFns": np.array([["a.jpg"], ["b.jpg"]], dtype=object),
            "utmDb": np.array([[585000.0, 585100.0], [4477000.0, 4477000.0]]),
            "qImageFns": np.array([["q.jpg"]], dtype=object),
            "utmQ": np.array([[585010.0], [4477000.0]]),
            "posDistThr": 25.0,
        }
        savemat(root / "a.mat", {"dbStruct": struct | changes}, do_compression=True)
        data = (root / "a.mat").read_bytes()
        (root / "a.mat").write_bytes(data[: len(data) - cut])

    return build


def gsv(*rows: str) -> Build:
    header = "place_id,year,month,northdeg,city_id,lat,lon,panoid"
    return text("Dataframes/Rome.csv", "\n".join((header, *rows)))


def vpr(rows: list[list[object]]) -> Build:
    def build(root: Path) -> None:
        pictures("query/0.jpg", "query/1.jpg", "ref/0.jpg", "ref/1.jpg", "ref/2.jpg")(root)
        truth = np.empty((len(rows), 2), dtype=object)
        for i, (query, right) in enumerate(rows):
            truth[i, 0], truth[i, 1] = query, right
        np.save(root / "ground_truth_new.npy", truth)

    return build


def not_utf8(root: Path) -> None:
    picture(root / "a.jpg")
    os.rename(os.fsencode(root / "a.jpg"), os.fsencode(root) + b"/\xff.jpg")


ZONED, BARE = "@0550000.00@4180000.00@10@S@@@@@@@@@@@.jpg", "@0550001.00@4180000.00@@@@@@@@@@@@@.jpg"
BAD: list[tuple[str, str, Build, str]] = [
    ("extra cells", "csv", text("p.csv", "file,x,y\na.jpg,1,2,3\n", "a.jpg"), "line 2: expected 3 cells"),
    ("Latin-1", "csv", text("p.csv", b"file,x,y,note\na.jpg,1,2,\xfc\n", "a.jpg"), "not UTF-8 text .*0xfc"),
    ("open quote", "csv", text("p.csv", b'file,x,y\n"a.jpg,1,2', "a.jpg"), "must name exactly one image"),
    ("text", "gt-json", gt('{"positives": ["a"]}'), "query 0 must be a list of reference indices"),
    ("null", "gt-json", gt('{"positives": [null]}'), "None is not a list"),
    ("object", "gt-json", gt('{"positives": [{"a": 1}]}'), "is not a list"),
    ("text inside", "gt-json", gt('{"positives": [["a"]]}'), "'a' is not an index"),
    ("fraction", "gt-json", gt('{"positives": [[0.7]]}'), "0.7 is not an index"),
    ("nested", "gt-json", gt('{"positives": [[[2]]]}'), r"\[2\] is not an index"),
    ("truth value", "gt-json", gt('{"positives": [[true]]}'), "True is not an index"),
    ("negative", "gt-json", gt('{"positives": [[-1]]}'), "-1 is not an index"),
    ("tolerance", "gt-json", gt('{"positives": [[0]], "tolerance_frames": "x"}'), "must be a number of"),
    ("tolerance below 0", "gt-json", gt('{"positives": [[0]], "tolerance_frames": -3}'), "finite size"),
    ("not UTF-8", "gt-json", gt(b'{"positives": [[0]], "note": "\xfc"}'), "not valid JSON"),
    ("deep", "gt-json", gt("[" * 200_000), "not valid JSON"),
    ("a folder", "gt-json", gt(None), r"gt\.json cannot be read \(Is a directory\)"),
    ("latitude", "video", gpx('lat="x" lon="8"'), "lat of point 1 must be a number"),
    ("no longitude", "video", gpx('lat="50"'), "lon of point 1 must be a number"),
    ("not UTF-8", "video", gpx('lat="50" lon="8"', "latin-1"), r"a\.gpx is not valid GPX"),
    ("no queries", "pitts-mat", mat(qImageFns=np.zeros((0, 1), dtype=object)), "lists no images in q"),
    ("utmQ 3×1", "pitts-mat", mat(utmQ=np.ones((3, 1))), "utmQ must be 2×1 for 1 images, got 3"),
    ("utmDb N×2", "pitts-mat", mat(utmDb=np.ones((3, 2))), "utmDb must be 2×2 for 2 images, got 3×2"),
    ("radius", "pitts-mat", mat(posDistThr="far"), "cannot be read as pitts-mat"),
    ("truncated", "pitts-mat", mat(cut=60), r"a\.mat cannot be read"),
    ("place", "gsv-cities", gsv("x,2016,7,42,Rome,41.9,12.5,p"), "line 2, column place_id: 'x' is not an"),
    ("latitude", "gsv-cities", gsv("1,2016,7,42,Rome,x,12.5,p"), "line 2, column lat: 'x' is not a number"),
    ("no rows", "gsv-cities", gsv(), "Rome.csv contains no rows"),
    ("no column", "gsv-cities", text("Dataframes/Rome.csv", "place_id,year\n"), "has no column month"),
    ("zone 99", "at-names", pictures(ZONED.replace("@10@", "@99@")), "UTM zone 99S, which does not exist"),
    ("band", "at-names", pictures(ZONED.replace("@S@", "@I@")), "UTM zone 10I, which does not exist"),
    ("zones mixed", "at-names", pictures(ZONED, BARE), "has no UTM zone but 1 of 2 do"),
    ("name", "at-names", not_utf8, r"name is not UTF-8 \(b'\\xff\.jpg'\)"),
    ("name", "photos", not_utf8, r"name is not UTF-8"),
    ("missing query", "vpr-bench", vpr([[0, [1]]]), "query 1 has no row"),
    ("query -1", "vpr-bench", vpr([[0, [1]], [-1, [2]]]), "-1 is not an index"),
    ("query twice", "vpr-bench", vpr([[0, [1]], [0, [2]], [1, [0]]]), "query 0 appears more than once"),
    ("too many", "vpr-bench", vpr([[0, [1]], [1, [2]], [2, [0]]]), "it has 3 queries"),
    ("fraction", "vpr-bench", vpr([[0, [1.5]], [1, [2]]]), "1.5 is not an index"),
    ("range", "vpr-bench", vpr([[0, range(10**13)], [1, [2]]]), "a range of 10,000,000,000,000"),
    ("no pairs", "amstertime-csv", text("verification.csv", "image1,image2,y\na,b,0\n"), "no images in"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "build", "words"), [b[1:] for b in BAD], ids=[f"{b[1]} {b[0]}" for b in BAD]
)
def test_a_bad_folder_is_told_in_one_sentence(tmp_path, layout, build, words):
    build(tmp_path)
    with pytest.raises(KappaPlaceError, match=words) as caught:
        read_layout(layout, tmp_path)
    assert "\n" not in str(caught.value)
    str(caught.value).encode("utf-8")  # any terminal can print it


class Attack:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> object:
        return os.mkdir, (str(self.file),)


def test_a_pickle_that_attacks_is_refused_and_never_run(tmp_path):
    vpr([[0, Attack(tmp_path / "harm")], [1, [2]]])(tmp_path)
    with pytest.raises(KappaPlaceError, match="cannot be read safely"):
        read_layout("vpr-bench", tmp_path)
    assert not (tmp_path / "harm").exists()


def test_randomly_damaged_ground_truth(tmp_path):
    """Whatever byte is wrong: a sentence, or a table if the damage is harmless; never much memory."""
    vpr([[0, [0, 1]], [1, np.array([2])]])(tmp_path)
    file = tmp_path / "ground_truth_new.npy"
    whole, chance = file.read_bytes(), random.Random(0)
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(chance.choice((1, 3))):
            damaged[chance.randrange(60, len(damaged))] = chance.randrange(256)
        file.write_bytes(damaged)
        with contextlib.suppress(KappaPlaceError):
            read_layout("vpr-bench", tmp_path)
    # LONG_BINPUT at four billion: the unpickler in C would fill 64 GB for its list of memories.
    header = whole[: 10 + int.from_bytes(whole[8:10], "little")]
    file.write_bytes(header + b"\x80\x02]r\xff\xff\xff\xff.")
    with pytest.raises(KappaPlaceError, match="must contain rows"):
        read_layout("vpr-bench", tmp_path)


def test_damaged_npy(tmp_path):
    (tmp_path / "x.npy").write_bytes(b"junk")
    with pytest.raises(KappaPlaceError, match="cannot be read safely"):
        load_rows(tmp_path / "x.npy")


def test_randomly_damaged_json_and_csv(tmp_path):
    gt(json.dumps({"positives": [[0, 1]], "tolerance_frames": 2}))(tmp_path)
    text("p.csv", "file,lat,lon,yaw,time,role\nref/0.jpg,48.8,2.3,90,2020-01-02,query\n")(tmp_path)
    chance = random.Random(1)
    for layout, name in (("gt-json", "gt.json"), ("csv", "p.csv")):
        whole = (tmp_path / name).read_bytes()
        sentences: list[str] = []
        for _ in range(300):
            damaged = bytearray(whole)
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            (tmp_path / name).write_bytes(damaged)
            try:
                read_layout(layout, tmp_path)
            except KappaPlaceError as error:  # any other error fails the test
                sentences.append(str(error))
        assert len(sentences) > 50
        assert not any("\n" in sentence for sentence in sentences)


def test_links_list_no_image_twice(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    picture(root / "real" / "a.jpg")
    picture(outside / "b.jpg")
    (root / "again").symlink_to(".")
    (root / "also").symlink_to("real")
    (root / "up").symlink_to("..")  # its only news is outside/
    assert list_images(root) == ["real/a.jpg", "up/outside/b.jpg"]
    (root / "up").unlink()
    (root / "elsewhere").symlink_to(outside)
    (outside / "loop").symlink_to(outside)
    assert list_images(root) == ["elsewhere/b.jpg", "real/a.jpg"]
