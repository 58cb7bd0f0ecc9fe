"""`kappaplace demo`: train on one district of a synthetic city, and localize in a map of another."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from kappaplace.cli.demo_map import MapResult, render, use_map
from kappaplace.cli.options import AsJson
from kappaplace.files import make_folder, write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

    from kappaplace.evaluation import Evaluation
    from kappaplace.models import PlaceModel
    from kappaplace.reports import GalleryRow
    from kappaplace.retrieval import Evidence
    from kappaplace_city import CityViews

RADIUS = 25.0  # metres within which a reference is a positive
MATCHES = 10
SCORES = ("l2", "pa", "inverse-kappa", "kappaplace")  # the scores of the paper
# pixels; larger than the input of the model, so that readers can recognize the place
GALLERY_SIZE, GALLERY_MATCHES = 192, 3
GALLERY = (("High confidence", 97), ("Middle confidence", 50), ("Low confidence", 3))  # percentile of 1/U
REPEATABLE = (
    "The same seed gives the same table on the same machine with the same number of threads. Results vary "
    "slightly between processors: with seed 0, R@1 is between 0.665 and 0.695."
)
EXAMPLES = 2
"""Number of queries per decision in the report."""
LABELLED_SEED = 100_003
"""Added to the seed for the labelled queries, so that they differ from the evaluated ones."""
DECISIONS = {"accept": "accepted", "doubtful": "doubtful", "reject": "rejected"}
MEANING = {
    "Accepted": "Use these answers: with 95% confidence, their error rate stays within the limit.",
    "Doubtful": "Check these answers, or take another photo.",
    "Rejected": "Do not use these answers: at most 20% of such answers would be correct.",
}
NONE = "None: the labels do not show that any group of answers has such a risk."
ABOUT_SCORES = (
    "ECE@K compares the fraction of correct queries in ten bins of a score with the expected fraction of "
    "each bin. Lower is better, but rescaling the score changes it. AUROC is the probability that a correct "
    "match has a higher confidence than an incorrect one. Higher is better, and 0.5 is chance."
)
ABOUT_GALLERY = (
    "A solid green frame is within 25 m, a dashed red one is farther. The confidence is 1/U, the length of "
    "the κ-weighted sum of the two descriptors."
)
ABOUT_RELIABILITY = (
    "Queries are sorted into ten bins from certain to uncertain. A calibrated score follows the dashed line; "
    "gray bars show the fraction of queries per bin."
)
ABOUT_KAPPA = (
    "Top: the same views under one condition at a time; bars are standard errors. Bottom: all queries. κ "
    "measures how degraded the image is. It cannot detect that another street looks the same."
)
Say = Callable[[str], None]
KappaCurves = dict[str, tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]]
"""Levels, mean κ and its standard error of each condition, measured on the same views."""


@dataclass(frozen=True)
class DemoSettings:
    """Settings of the demo. The defaults take about two minutes on two idle cores."""

    seed: int = 0
    size: int = 64
    """Side of the images in pixels."""
    blocks: tuple[int, int] = (3, 3)
    train_spacing: float = 20.0
    """Metres of road between classes, because adjacent classes would look alike."""
    queries: int = 400
    labelled: int = 2000
    """Number of labelled queries that calibrate the map; other queries than those that are evaluated."""
    dim: int = 128
    steps: int = 700
    batch_size: int = 64


@dataclass(frozen=True, eq=False)
class DemoResult:
    """Results that the report shows."""

    settings: DemoSettings
    model: PlaceModel
    queries: CityViews
    references: CityViews
    evidence: Evidence
    kappa: NDArray[np.float32]
    """κ of the queries."""
    evaluation: Evaluation
    kappa_curves: KappaCurves


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the report and the model.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help=f"Random seed for the city and the training. {REPEATABLE}")] = 0,
    steps: Annotated[
        int, typer.Option(min=1, help="Number of training steps of the encoder.")
    ] = DemoSettings.steps,
    as_json: AsJson = False,
) -> None:
    """Train a small model on a synthetic city, and localize photos in a map of a district it has never seen.

    The report compares uncertainty scores, and shows which answers were accepted, doubtful or rejected.

    Examples:

        kappaplace demo

        kappaplace demo --seed 3 --out demo3

        kappaplace demo --json | jq .recall
    """
    from rich.console import Console

    make_folder(out)  # before a minute of work, so that an error appears at once
    notes = Console(stderr=True)

    def say(line: str) -> None:
        notes.print(f"[dim]•[/dim] {line}", highlight=False)

    result = run_demo(DemoSettings(seed=seed, steps=steps), say)
    files, mapped = write_results(result, out, say)
    if as_json:
        facts = {**result.evaluation.to_dict(), "map": mapped.to_dict(), "files": files}
        return typer.echo(json.dumps(facts, default=str))
    console = Console()
    console.print(evaluation_table(result.evaluation))
    console.print(f"Open [bold]{files['report']}[/bold] in a browser; model and map are in {out}.")
    console.print(f"[bold]{mapped.sentence}[/bold]", highlight=False)


def run_demo(settings: DemoSettings | None = None, say: Say = lambda line: None) -> DemoResult:
    """Run everything in memory; ``say`` receives one line per step."""
    import torch

    from kappaplace.data import positives_within
    from kappaplace.evaluation import evaluate_scores
    from kappaplace.retrieval import ArrayReferences, Queries, retrieve
    from kappaplace.uncertainty import score_named
    from kappaplace_city import SyntheticCity

    settings = settings or DemoSettings()
    seed, size = settings.seed, settings.size
    torch.manual_seed(seed)
    city = SyntheticCity(seed, settings.blocks, aliased=0.12, featureless=0.12)
    say("Building a synthetic city: one district for training, another for testing")
    training = city.views("train", spacing=settings.train_spacing, strength=0.6, seed=seed)
    model = train_model(training, settings, say)
    say("Retrieving in the test district")
    views = city.views("test", spacing=5.0, queries=settings.queries, query_strength=0.6, seed=seed)
    queries, references = views.select(views.is_query), views.select(~views.is_query)
    query, reference = (model.embed(render(part, size), batch_size=128) for part in (queries, references))
    evidence = retrieve(Queries(query), ArrayReferences(reference, references.positions), MATCHES)
    hits = positives_within(queries.positions, references.positions, RADIUS).hits(evidence.matches.indices)
    evaluation = evaluate_scores(evidence, hits, [score_named(name) for name in SCORES])
    kappa, curves = np.asarray(query.kappa), _kappa_curves(model, queries, size)
    return DemoResult(settings, model, queries, references, evidence, kappa, evaluation, curves)


def train_model(views: CityViews, settings: DemoSettings, say: Say) -> PlaceModel:
    """Train for retrieval, then fit κ around the prototypes, with recipes of `kappaplace train`."""
    import torch

    from kappaplace.training import TrainingSet, settings_for, train
    from kappaplace_city.weather import harsh

    # Classes 20 m apart are never neighbours, so a few groups are enough. The city has its own light and
    # weather, so crops are augmentation enough.
    colors = [f"augment.{name}=0" for name in ("brightness", "contrast", "saturation", "hue")]
    common = ["classes.groups_per_axis=2", "classes.groups_per_heading=1", *colors, "run.trackers=[]"]
    common += [f"model.size={settings.size}", "optimizer.schedule=warm-cosine", f"run.seed={settings.seed}"]
    encoder = ["model.backbone=resnet_tiny", "model.pretrained=false", "model.trainable=all"]
    encoder += [f"model.dim={settings.dim}", "augment.scale=0.6", "optimizer.lr=4e-3"]
    # Groups take turns epoch by epoch: epochs are short, so that none is forgotten.
    encoder += ["optimizer.weight_decay=1e-3", "optimizer.iterations=10"]
    encoder += [f"optimizer.epochs={settings.steps // 10}", f"optimizer.batch_size={settings.batch_size}"]

    def run(recipe: str, views: CityViews, options: list[str], folder: Path) -> PlaceModel:
        images = torch.from_numpy(render(views, settings.size)).permute(0, 3, 1, 2).contiguous()
        data = TrainingSet(images, views.positions, views.heading, name="synthetic city")
        model = train(settings_for(recipe, "", [*common, *options]), data, folder).model
        return model  # type: ignore[return-value]  # a recipe for images gives a PlaceModel

    with TemporaryDirectory() as folder:
        say(f"Training a small encoder ({len(views):,} images)")
        run("retrieval", views, encoder, Path(folder) / "retrieval")
        say("Freezing it and fitting the kappa head on degraded views of the same places")
        degraded = replace(views, conditions=harsh(len(views), np.random.default_rng([settings.seed, 7])))
        # Ten times the paper's learning rate: κ must reach a few hundred in only a few hundred steps.
        head = [f"model.start={folder}/retrieval/model", "augment.scale=1.0", "optimizer.lr=1e-2"]
        head += ["optimizer.epochs=60", "optimizer.batch_size=256"]
        return run("kappa-pt", degraded, head, Path(folder) / "kappa").fold().eval()


def _kappa_curves(model: PlaceModel, queries: CityViews, size: int) -> KappaCurves:
    """Measure κ of the same views under one condition at a time, from none to the worst."""
    from kappaplace.progress import track
    from kappaplace_city import Conditions

    views = queries.select(np.arange(min(40, len(queries))))
    levels = np.linspace(0.0, 1.0, 5)
    curves = {}
    names = ("night", "fog", "blur", "occlusion")
    with track("Degrading queries", len(names) * len(levels)) as bar:
        for name in names:
            kappa = np.empty((len(levels), len(views)))
            for row, level in enumerate(levels.tolist()):
                degraded = replace(views, conditions=Conditions.clear(len(views), **{name: level}))
                kappa[row] = model.embed(degraded.render(size), progress=False).kappa
                bar.advance()
            curves[name] = (levels, kappa.mean(1), kappa.std(1) / np.sqrt(len(views)))
    return curves


def score_rows(evaluation: Evaluation) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of the table: one line per score."""
    numbers = {each.score.label: [*each.ece.values(), each.auroc] for each in evaluation.scores}
    rows = [[label, *(f"{value:.3f}" for value in values)] for label, values in numbers.items()]
    return ["score", *(f"ECE@{k} ↓" for k in evaluation.recall), "AUROC ↑"], rows


def recall_line(evaluation: Evaluation) -> str:
    """Return R@1, R@5 and R@10 in one line."""
    return " · ".join(f"R@{k} {value:.3f}" for k, value in evaluation.recall.items())


def evaluation_table(evaluation: Evaluation) -> Table:
    """Return the table for the terminal."""
    from rich.table import Column, Table

    (first, *others), rows = score_rows(evaluation)
    title = f"In the test district, {len(evaluation.hits)} queries:\n{recall_line(evaluation)}"
    table = Table(first, *(Column(name, justify="right") for name in others), title=title)
    for row in rows:
        table.add_row(*row)
    return table


def gallery(result: DemoResult) -> list[GalleryRow]:
    """Return a query of high, middle and low confidence, each with its best matches."""
    from kappaplace.reports import GalleryRow
    from kappaplace.uncertainty import score_named

    pairs = score_named("kappaplace").match
    assert pairs is not None
    confidence = 1.0 / pairs(result.evidence)
    rows = []
    for (title, _), query in zip(GALLERY, _gallery_queries(result), strict=True):
        matches = result.evidence.matches.indices[query, :GALLERY_MATCHES]
        offsets = result.references.positions[matches] - result.queries.positions[query]
        values = zip(confidence[query], np.linalg.norm(offsets, axis=1), strict=False)
        captions = [f"confidence {value:.0f}\n{distance:.0f} m away" for value, distance in values]
        image = result.queries.render(GALLERY_SIZE, np.array([query]))[0]
        images = list(result.references.render(GALLERY_SIZE, matches))
        right = result.evaluation.hits[query, :GALLERY_MATCHES].tolist()
        rows.append(GalleryRow(title, image, f"query, κ {result.kappa[query]:.0f}", images, right, captions))
    return rows


def _gallery_queries(result: DemoResult) -> list[int]:
    """Return the queries of the gallery, by the confidence of their best match."""
    from kappaplace.uncertainty import score_named

    pairs = score_named("kappaplace").match
    assert pairs is not None
    order = np.argsort(1.0 / pairs(result.evidence)[:, 0], kind="stable")
    return [int(order[round((len(order) - 1) * percentile / 100)]) for _, percentile in GALLERY]


def write_results(
    result: DemoResult, folder: Path, say: Say = lambda line: None
) -> tuple[dict[str, Path], MapResult]:
    """Use the model in a map, and write everything.

    Args:
        result: Result of `run_demo`.
        folder: Folder of the demo.
        say: Function that gets one line per step.

    Returns:
        Path of report.html, its figures, table.json, the model and the map, and the answers of the map.
    """
    from kappaplace.models import ModelCard, save_model
    from kappaplace.reports import gallery_figure, kappa_figure, png_of, reliability_figure

    folder, evaluation, settings = make_folder(folder), result.evaluation, result.settings
    metrics = {f"R@{k}": value for k, value in evaluation.recall.items()}
    card = ModelCard("synthetic city, train district", "Apache-2.0", metrics, "Made by `kappaplace demo`.")
    model = save_model(result.model, folder / "model", card)
    # The same district and weather, but other places and photographs than those of the evaluation.
    labelled = result.queries.city.views(
        "test",
        spacing=5.0,
        queries=settings.labelled,
        query_strength=0.6,
        seed=settings.seed + LABELLED_SEED,
    )
    views = (result.references, labelled.select(labelled.is_query), result.queries)
    mapped = use_map(model, views, settings.size, folder, say)
    scores = {each.score.label: each for each in evaluation.scores}
    curves = {label: {1: each.curves[1]} for label, each in scores.items()}
    damage, best = result.queries.conditions.damage, evaluation.hits[:, 0]
    figures = {
        "reliability": reliability_figure(curves, columns=2),
        "kappa": kappa_figure(result.kappa_curves, damage, result.kappa, best),
        "gallery": gallery_figure(gallery(result)),
    }
    facts = {**evaluation.to_dict(), "map": mapped.to_dict()}
    contents: dict[str, str | bytes] = {
        "table.json": json.dumps(facts, indent=2) + "\n",
        **{f"{name}.png": png_of(figure) for name, figure in figures.items()},
        "report.html": _report(result, mapped, figures),
    }
    for name, content in contents.items():
        write_file(folder / name, content)
    files = {Path(name).stem: folder / name for name in contents}
    return {**files, "model": model, "map": folder / "map"}, mapped


def _report(result: DemoResult, mapped: MapResult, figures: Mapping[str, Figure]) -> str:
    from kappaplace.reports import chapter, counts, drawing, page, paragraph, table

    numbers = {name: (kind, mapped.counts[kind]) for kind, name in DECISIONS.items()}
    evaluation = result.evaluation
    tested = (
        f"A small model was trained on one district of a synthetic city. In another district, "
        f"{len(result.references):,} images are the map; {mapped.calibration_queries:,} labelled queries "
        f"calibrated it, and {len(result.queries):,} other queries tested it."
    )
    scores = f"All {len(result.queries):,} queries without patch matching: {recall_line(evaluation)}."
    sections = [
        counts(numbers) if not mapped.refusal else "",
        paragraph(tested),
        *_examples(result, mapped),
        chapter(
            "Which score detects incorrect matches?",
            [paragraph(scores), table(*score_rows(evaluation)), paragraph(ABOUT_SCORES, small=True)],
            "scores",
        ),
        chapter("Queries of high, middle and low κ-based confidence", _gallery_rows(result), "gallery"),
        chapter(
            "Is the score calibrated?",
            [drawing(figures["reliability"], "Reliability curves of four scores", ABOUT_RELIABILITY)],
            "reliability",
        ),
        chapter(
            "κ falls as the image gets worse",
            [drawing(figures["kappa"], "κ against degradation", ABOUT_KAPPA)],
            "kappa",
        ),
        paragraph(f"Made by: kappaplace demo --seed {result.settings.seed}. {REPEATABLE}", small=True),
    ]
    return page("KappaPlace demo", mapped.sentence, sections)


def _examples(result: DemoResult, mapped: MapResult) -> list[str]:
    """Return accepted, doubtful and rejected queries, each with its best matches."""
    from kappaplace.reports import heading, paragraph

    pieces = []
    for title, rows in mapped.examples(EXAMPLES):
        pieces.append(heading(title))
        pieces.append(paragraph(MEANING[title] if rows else NONE, small=True))
        for query in rows:
            answer = mapped.answers[query]
            matches = [match.reference for match in answer.matches[:GALLERY_MATCHES]]
            chance = (
                "" if answer.probability is None else f", correct with probability {answer.probability:.2f}"
            )
            pieces.append(_row(result, query, f"query{chance}", matches, [""] * len(matches)))
    return pieces


def _gallery_rows(result: DemoResult) -> list[str]:
    from kappaplace.reports import heading, paragraph

    pieces = [paragraph(ABOUT_GALLERY, small=True)]
    for row, query in zip(gallery(result), _gallery_queries(result), strict=True):
        matches = result.evidence.matches.indices[query, :GALLERY_MATCHES].tolist()
        captions = [caption.split("\n")[0] for caption in row.captions]
        pieces += [heading(row.title, level=3), _row(result, query, row.query_caption, matches, captions)]
    return pieces


def _row(
    result: DemoResult, query: int, caption: str, matches: Sequence[int], captions: Sequence[str]
) -> str:
    """Return a query and some references as framed images, with the distance of each reference."""
    from kappaplace.reports import card

    image = result.queries.render(GALLERY_SIZE, np.array([query]))[0]
    cards = [card("query", "query", _jpeg(image), [caption])]
    gaps = np.linalg.norm(result.references.positions[matches] - result.queries.positions[query], axis=1)
    images = result.references.render(GALLERY_SIZE, np.array(matches))
    for number, (pixels, gap, text) in enumerate(zip(images, gaps.tolist(), captions, strict=True), 1):
        right = gap <= RADIUS
        words = [f"{number}. {'correct' if right else 'wrong'}, {gap:.0f} m away", *([text] if text else [])]
        cards.append(card("right" if right else "wrong", f"match {number}", _jpeg(pixels), words))
    return f'<div class="row">{"".join(cards)}</div>'


def _jpeg(pixels: NDArray[np.uint8]) -> str:
    from PIL import Image

    from kappaplace.reports import image_url

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=85)
    return image_url(buffer.getvalue(), "jpeg")
