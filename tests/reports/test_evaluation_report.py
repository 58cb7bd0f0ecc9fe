"""The whole report: complete, self-contained, the same twice, and never surprised by what is missing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation.results import EvaluationResult
from kappaplace.reports import artifacts
from kappaplace.reports import html as report_html
from kappaplace.reports.evaluation import write_report
from tests.reports.synthetic import make_images, make_result, make_set


@pytest.fixture(scope="module", autouse=True)
def _coarse() -> Iterator[None]:
    """Fewer pixels: nothing here looks at them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(artifacts, "DPI", 50)
        patch.setattr(artifacts, "PHOTO_DPI", 30)
        yield


NASTY = "hills & <script>alert('x')</script>"


class Reader(HTMLParser):
    """What a browser would find in a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two sets, one with everything and one with next to nothing."""
    folder = tmp_path_factory.mktemp("report")
    write_report(two_sets(folder / "images"), folder)
    return folder


def two_sets(images: Path) -> EvaluationResult:
    full = make_set(images=make_images(images, 5))
    poor = make_set(NASTY, 120, seed=1, kappa=False, poses=False)
    return make_result("model <A>", full, poor, measured=True)


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


def test_page_is_self_contained(page: str) -> None:
    reader = Reader(page)
    assert "http:" not in page
    assert "https:" not in page
    assert not {"script", "iframe", "object"} & {tag for tag, _ in reader.tags}
    links = [attributes for tag, attributes in reader.tags if tag == "link"]
    assert [link["rel"] for link in links] == ["icon"]
    assert str(links[0]["href"]).startswith("data:image/svg+xml;base64,")
    sources = [attributes["src"] or "" for _, attributes in reader.tags if "src" in attributes]
    assert sources
    assert all(source.startswith("data:image/") for source in sources)
    targets = {attributes["href"] for tag, attributes in reader.tags if tag == "a"}
    anchors = {f"#{attributes['id']}" for _, attributes in reader.tags if "id" in attributes}
    assert targets == anchors  # the contents lead to every chapter, and nowhere else


def test_names_are_escaped(page: str) -> None:
    assert "<script" not in page
    assert "model <A>" not in page
    assert NASTY in Reader(page).text
    assert "model <A>" in Reader(page).text


def test_every_picture_has_words(page: str) -> None:
    reader = Reader(page)
    alternatives = [attributes.get("alt") for tag, attributes in reader.tags if tag == "img"]
    assert all(alternatives)
    figures = sum(tag == "figure" for tag, _ in reader.tags)
    assert figures == sum(tag == "figcaption" for tag, _ in reader.tags) == 13
    for sentence in (
        report_html.CAPTIONS["reliability"],
        report_html.CAPTIONS["risk"],
        report_html.CAPTIONS["sensitivity"],
        report_html.CAPTIONS["kappa"],
    ):
        assert sentence in reader.text
    assert "KappaPlace is uncertain" in reader.text  # below the map


def test_page_says_what_is_missing_and_why(page: str) -> None:
    text = Reader(page).text
    assert "SUE needs the positions of the references" in text
    assert "No κ histogram: the model has no κ." in text
    assert "No map: the images have no positions." in text
    assert "No gallery: the evaluation has no image files." in text
    assert "Not pooled, because a dataset lacks it: KappaPlace." in text
    assert "Queries without positives are counted as failures." in text


def test_every_figure_and_table_lies_beside_the_page(folder: Path) -> None:
    stems = {file.stem for file in (folder / "figures").glob("*.png")}
    assert stems == {file.stem for file in (folder / "figures").glob("*.svg")}
    assert {"ece-bars", "ece-sensitivity", "reliability-pooled", "risk-coverage-pooled"} <= stems
    of_set = ("reliability", "risk-coverage", "histograms", "kappa", "map", "gallery", "failures")
    assert {f"{kind}-harbour" for kind in of_set} <= stems
    tables = {file.name: file.read_text() for file in (folder / "tables").glob("*.tex")}
    assert {"retrieval.tex", "scores-pooled.tex", "scores-harbour.tex", "left-out.tex"} <= set(tables)
    for source in tables.values():
        assert source.count(r"\begin{") == source.count(r"\end{") == 2
        assert not re.search(r"(?<!\\)[%&_#](?=[^&]*<)", source)


def test_intervals_are_in_the_page(page: str) -> None:
    assert len(re.findall(r"<small>\[[-\d.]+, [-\d.]+\]</small>", page)) > 30


def test_the_same_result_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    result = two_sets(folder / "images")
    write_report(result, tmp_path)
    first = {file.relative_to(folder): file for file in folder.rglob("*.*") if file.parent.name != "images"}
    assert len(first) > 40
    for name, file in first.items():
        assert file.read_bytes() == (tmp_path / name).read_bytes(), name


@pytest.mark.parametrize(
    "part",
    [
        make_set(queries=1, kappa=False, poses=False),
        make_set(queries=25, few=True, all_right=True),
        replace(make_set(queries=25, few=True), hits=make_set(queries=25, few=True).hits & False),
    ],
    ids=["one query", "all right", "all wrong"],
)
def test_edges(part: object, tmp_path: Path) -> None:
    text = Reader(write_report(make_result("m", part), tmp_path).read_text()).text
    assert "–" in text  # AUROC is not defined
    assert "nan" not in text


def test_few_matches_and_no_scores(tmp_path: Path) -> None:
    part = make_set(queries=20, few=True)
    scores = {
        name: replace(s, match=None if s.match is None else s.match[:, :3]) for name, s in part.scores.items()
    }
    text = Reader(
        write_report(
            make_result("m", replace(part, hits=part.hits[:, :3], scores=scores)), tmp_path
        ).read_text()
    ).text
    assert "ECE@1" in text
    assert "ECE@5" not in text
    bare = write_report(make_result("m", replace(part, scores={}, left_out={"l2": "because"})), tmp_path)
    assert "because" in Reader(bare.read_text()).text
    with pytest.raises(KappaPlaceError, match="no dataset"):
        write_report(replace(make_result(), sets=()), tmp_path)


def test_missing_image_files_are_told(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 2)
    none = make_set(queries=4, few=True, images=("/nowhere/a.jpg", "/nowhere/b.jpg"))
    text = Reader(write_report(make_result("m", none), tmp_path / "none").read_text()).text
    assert re.search(r"none of its image files can be opened, for example [ab]\.jpg", text)
    some = make_set(queries=4, few=True, images=(images[0], str(tmp_path / "gone.jpg")))
    page = write_report(make_result("m", some), tmp_path / "some").read_text()
    assert "gone.jpg cannot be opened" in page
    assert "data:image/jpeg" in page
    assert str(tmp_path) not in page  # names of files, not where they lie


def test_page_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "MOST_BYTES", 70_000)
    file = write_report(make_result("m", make_set(queries=40, few=True)), tmp_path)
    assert file.stat().st_size < 95_000
    text = Reader(file.read_text()).text
    left_out = re.findall(r"this figure is only in (figures/\S+\.png)", text)
    assert left_out
    assert all((tmp_path / name).exists() for name in left_out)
    assert "<figure>" in file.read_text()  # those that fit are there


def test_runs_side_by_side(tmp_path: Path) -> None:
    runs = [
        make_result(name, make_set(queries=60, few=True, noise=n))
        for name, n in (("A", 0.5), ("A", 2.0), ("C", 1.0))
    ]
    stranger = make_result("D", make_set("elsewhere", 30, seed=5, few=True))
    page = write_report(runs[0], tmp_path, [*runs[1:], stranger]).read_text()
    text = Reader(page).text
    assert "<title>Comparison of A, C, D</title>" in page  # its own title
    assert "Comparison, harbour." in text
    assert "A (2)" in text  # the same name twice
    assert (tmp_path / "figures" / "comparison-harbour.svg").exists()
    assert (tmp_path / "tables" / "comparison-harbour.tex").exists()
    alone = Reader(write_report(runs[0], tmp_path / "alone", [stranger]).read_text()).text
    assert "have no dataset in common" in alone
