"""What the demo leaves behind: a table, a report, the numbers and the model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kappaplace.demo.run import DemoResult
from kappaplace.evaluation import Evaluation
from kappaplace.files import make_folder, replace_file
from kappaplace.metrics import success_at
from kappaplace.models.checkpoint import ModelCard, save_model
from kappaplace.reports import html
from kappaplace.reports.figures import GalleryRow, gallery_figure, kappa_figure, reliability_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

GALLERY_SIZE = 192  # pixels: larger than what the model sees, for the reader's sake
GALLERY_MATCHES = 3
# Which query stands for which confidence: percentile of 1/U over the queries.
GALLERY = (("High confidence", 97), ("Middle confidence", 50), ("Low confidence", 3))


def score_rows(evaluation: Evaluation) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the one table: a line a score."""
    header = ["score", *(f"ECE@{k} ↓" for k in evaluation.recall), "AUROC ↑"]
    rows = [
        [result.score.label, *(f"{value:.3f}" for value in result.ece.values()), f"{result.auroc:.3f}"]
        for result in evaluation.scores
    ]
    return header, rows


def recall_line(evaluation: Evaluation) -> str:
    """R@1, R@5 and R@10 in one line."""
    return " · ".join(f"R@{k} {value:.3f}" for k, value in evaluation.recall.items())


def evaluation_table(evaluation: Evaluation, title: str) -> Table:
    """The table for the terminal."""
    from rich.table import Table

    header, rows = score_rows(evaluation)
    table = Table(title=f"{title}, {len(evaluation.hits)} queries:\n{recall_line(evaluation)}")
    for position, name in enumerate(header):
        table.add_column(name, justify="left" if position == 0 else "right")
    for row in rows:
        table.add_row(*row)
    return table


def gallery(result: DemoResult) -> list[GalleryRow]:
    """A query of high, middle and low confidence, each with its best matches."""
    confidence = 1.0 / result.match_uncertainty
    order = np.argsort(confidence[:, 0], kind="stable")
    rows = []
    for title, percentile in GALLERY:
        query = int(order[round((len(order) - 1) * percentile / 100)])
        references = result.matches.indices[query, :GALLERY_MATCHES]
        distance = np.linalg.norm(
            result.references.positions[references] - result.queries.positions[query], axis=1
        )
        images = result.references.render(GALLERY_SIZE, references)
        rows.append(
            GalleryRow(
                title,
                result.queries.render(GALLERY_SIZE, np.array([query]))[0],
                f"query, κ {result.query.kappa[query]:.0f}",
                list(images),
                result.evaluation.hits[query, :GALLERY_MATCHES].tolist(),
                [
                    f"confidence {c:.0f}\n{d:.0f} m away"
                    for c, d in zip(confidence[query], distance, strict=False)
                ],
            )
        )
    return rows


def write_results(result: DemoResult, folder: Path) -> dict[str, Path]:
    """Write report.html with its figures, table.json and the model; returns where each one is."""
    folder = make_folder(folder)
    evaluation = result.evaluation
    figures = {
        "reliability": reliability_figure(
            {r.score.label: r.curves[1] for r in evaluation.scores},
            {r.score.label: r.ece[1] for r in evaluation.scores},
            1,
        ),
        "kappa": kappa_figure(
            result.damage_curve,
            result.queries.conditions.damage,
            result.query.kappa,
            success_at(evaluation.hits, 1),
        ),
        "gallery": gallery_figure(gallery(result)),
    }
    files = write_files(folder, figures, evaluation.to_dict(), lambda pictures: report(result, pictures))
    metrics = {f"R@{k}": value for k, value in evaluation.recall.items()}
    card = ModelCard("synthetic city, train district", "Apache-2.0", metrics, "Made by `kappaplace demo`.")
    files["model"] = save_model(result.model, folder / "model", card)
    return files


def write_files(
    folder: Path, figures: dict[str, Figure], table: object, page: Callable[[dict[str, bytes]], str]
) -> dict[str, Path]:
    """Figures as PNG, the numbers as table.json, and report.html, which ``page`` makes of the pictures."""
    pictures = {name: html.png_of(figure) for name, figure in figures.items()}
    files = {"report": folder / "report.html", "table": folder / "table.json"}
    for name, png in pictures.items():
        files[name] = folder / f"{name}.png"
        replace_file(files[name], lambda part, png=png: part.write_bytes(png))  # type: ignore[misc]
    text = json.dumps(table, indent=2) + "\n"
    replace_file(files["table"], lambda part: part.write_text(text, encoding="utf-8"))
    document = page(pictures)
    replace_file(files["report"], lambda part: part.write_text(document, encoding="utf-8"))
    return files


def score_section(evaluation: Evaluation) -> list[str]:
    """The table of scores, and how to read it."""
    header, rows = score_rows(evaluation)
    return [
        html.heading("Which score knows when it is wrong?"),
        html.table(header, rows),
        html.paragraph(
            "ECE@K compares the success in ten bins of a score with what the bins promise (1 down to 0): "
            "lower is better, but a mere re-scaling of the score moves it. AUROC is the chance that a right "
            "query looks surer than a wrong one: higher is better, .5 is guessing, no re-scaling moves it."
        ),
    ]


def report(result: DemoResult, pictures: dict[str, bytes]) -> str:
    """The page that the demo opens with."""
    evaluation = result.evaluation
    sections = [
        *score_section(evaluation),
        html.heading("Three queries and their best matches"),
        html.picture(
            pictures["gallery"],
            "Three queries with their three best matches",
            "Each row is a query (grey frame) with its three best references: green is within 25 m, red is "
            "not. The confidence is 1/U, the length of the κ-weighted sum of the two descriptors.",
        ),
        html.heading("Is a bin as good as it promises?"),
        html.picture(
            pictures["reliability"],
            "Reliability curves of four scores",
            "Queries are sorted into ten bins from certain to uncertain. A calibrated score follows the "
            "dashed line; grey bars show how many queries a bin holds.",
        ),
        html.heading("κ falls as the image gets worse"),
        html.picture(
            pictures["kappa"],
            "Concentration against damage",
            "Left: the same views rendered under one kind of damage at a time; bars are standard errors. "
            "Right: all queries. κ measures how noisy the image is; it cannot know that another street looks "
            "the same.",
        ),
        html.paragraph(f"Made by: kappaplace demo --seed {result.settings.seed}"),
    ]
    lead = (
        f"A small model learnt one district of a synthetic city and was tested in another: "
        f"{len(evaluation.hits)} queries against {len(result.references):,} references. "
        f"{recall_line(evaluation)}."
    )
    return html.page("KappaPlace demo", lead, sections)
