"""What the demo on real images leaves behind: a table, figures and a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.thumbnails import THUMBNAIL_SIZE, thumbnail
from kappaplace.demo.output import GALLERY, GALLERY_MATCHES, recall_line, score_section, write_files
from kappaplace.demo.real import RealResult, image_paths
from kappaplace.files import make_folder
from kappaplace.reports import html
from kappaplace.reports.figures import GalleryRow, gallery_figure, kappa_figure, reliability_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def probability_line(result: RealResult) -> str:
    """How good the probabilities that came with the model are on this set; empty without them."""
    facts = result.probability_facts()
    if facts is None:
        return ""
    return (
        f"Calibrated on other places, the model's probabilities have a smooth ECE of "
        f"{facts['smooth ECE']:.3f} and a Brier score of {facts['Brier']:.3f} here; from a probability of "
        f"{facts['accepted from']:.2f} on, {facts['accepted']:,} of {len(result.evaluation.hits):,} queries "
        f"are accepted, {facts['accepted and wrong']:,} of them wrong. No risk is guaranteed."
    )


def missing_line(result: RealResult) -> str:
    """A word on queries that nothing is right for; empty where there are none."""
    count = result.without_positives
    return f"{count:,} queries have no right reference and count as wrong." if count else ""


def gallery(result: RealResult) -> list[GalleryRow]:
    """A query of high, middle and low confidence, each with its best matches."""
    evidence, label = result.evidence, result.uncertainty[0]
    order = np.argsort(-result.uncertainty[1], kind="stable")  # the least certain first, as in the demo
    rows = []
    for title, percentile in GALLERY:
        query = int(order[round((len(order) - 1) * percentile / 100)])
        found = evidence.matches.indices[query, :GALLERY_MATCHES]
        files = list(map(str, evidence.references.images(found)))
        similarities = evidence.matches.similarities[query, :GALLERY_MATCHES]
        rows.append(
            GalleryRow(
                f"{title} ({label})",
                _pixels(image_paths(evidence.queries.images, [query])[0]),
                _query_caption(result, query),
                [_pixels(file) for file in files],
                result.evaluation.hits[query, :GALLERY_MATCHES].tolist(),
                [f"{Path(file).name}\ncosine {s:.2f}" for file, s in zip(files, similarities, strict=True)],
            )
        )
    return rows


def write_real(result: RealResult, folder: Path) -> dict[str, Path]:
    """Write report.html with its figures and table.json; returns where each one is."""
    scores = result.evaluation.scores
    figures: dict[str, Figure] = {
        "reliability": reliability_figure(
            {r.score.label: r.curves[1] for r in scores}, {r.score.label: r.ece[1] for r in scores}, 1
        ),
        "gallery": gallery_figure(gallery(result)),
    }
    if (damage := result.damage) is not None:
        title = f"{len(damage.level)} queries, each damaged once"
        figures["kappa"] = kappa_figure(damage.curves, damage.level, damage.kappa, damage.right, title)
    page = make_folder(folder)
    return write_files(page, figures, result.to_dict(), lambda pictures: report(result, pictures))


def report(result: RealResult, pictures: dict[str, bytes]) -> str:
    """The page."""
    evaluation = result.evaluation
    sections = [
        *score_section(evaluation),
        *(html.paragraph(line) for line in (probability_line(result), missing_line(result)) if line),
        html.heading("Three queries and their best matches"),
        html.picture(
            pictures["gallery"],
            "Three queries with their three best matches",
            "Each row is a query (grey frame) with its three best references: green is right, red is wrong.",
        ),
        html.heading("Is a bin as good as it promises?"),
        html.picture(
            pictures["reliability"],
            "Reliability curves of the scores",
            "Queries are sorted into ten bins from certain to uncertain. A calibrated score follows the "
            "dashed line; grey bars show how many queries a bin holds.",
        ),
    ]
    if "kappa" in pictures:
        sections += [
            html.heading("What κ makes of damage"),
            html.picture(
                pictures["kappa"],
                "Concentration against damage",
                "Left: the same queries under one kind of damage at a time; bars are standard errors. Right: "
                "queries damaged at random. κ measures how noisy the image is; it cannot know that another "
                "place looks the same.",
            ),
        ]
    sections.append(html.paragraph(f"Made by: kappaplace demo --real {result.retrieved.name}"))
    lead = (
        f"{result.model} on {result.retrieved.name}: {len(evaluation.hits):,} queries against "
        f"{result.retrieved.references:,} references. {recall_line(evaluation)}."
    )
    return html.page("KappaPlace on real images", lead, sections)


def _query_caption(result: RealResult, query: int) -> str:
    embedded, probability = result.evidence.queries.embeddings, ""
    if result.calibration is not None:
        probability = f", probability {1.0 - result.uncertainty[1][query]:.2f}"
    if embedded is None or embedded.kappa is None:
        return f"query{probability}"
    return f"query, κ {embedded.kappa[query]:.0f}{probability}"


def _pixels(file: str) -> NDArray[np.uint8]:
    """The picture in small; grey where it cannot be opened any more."""
    small = thumbnail(file)
    return (
        np.full((THUMBNAIL_SIZE[1], THUMBNAIL_SIZE[0], 3), 200, np.uint8) if small is None else small.pixels
    )
