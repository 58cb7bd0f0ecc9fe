"""``kappaplace evaluate``: every score and every metric, from a model, descriptors or a similarity matrix."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kappaplace.data import TABLE_FORMATS, NoPositives
from kappaplace.errors import KappaPlaceError

if TYPE_CHECKING:
    from kappaplace.evaluation import Choices, EvaluationResult, Machine


_Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL] TABLE…",
        help="A model (folder, weights file or name; without it our pretrained one) and tables; with "
        "--similarities or --descriptors only the tables that belong to them; with --protocol paper only "
        "models.",
    ),
]
_Pair = tuple[Path, Path]


def evaluate(
    words: _Words = None,
    out: Annotated[Path, typer.Option(help="Folder of results and report.")] = Path("evaluation"),
    similarities: Annotated[
        list[Path] | None,
        typer.Option(
            help="Cosines of queries × references, .npy or .npz with one matrix a method; repeatable."
        ),
    ] = None,
    positives: Annotated[
        list[Path] | None,
        typer.Option(
            help="Right references of each query: .json list of lists, or .npy/.npz; one for each set."
        ),
    ] = None,
    method: Annotated[str, typer.Option(help="Which matrix of an .npz file; without it every one.")] = "",
    descriptors: Annotated[
        _Pair | None, typer.Option(help="Descriptors of queries and of references, two .npy files.")
    ] = None,
    kappa: Annotated[_Pair | None, typer.Option(help="Their κ, two .npy files.")] = None,
    uncertainty: Annotated[
        list[Path] | None,
        typer.Option(help="A score of yours: CSV with query[,reference],uncertainty; repeatable."),
    ] = None,
    neighborhood: Annotated[
        str,
        typer.Option(
            "--neighborhood",
            "--neighbourhood",
            help="Without a table: which references show one place, frames:5 or self.",
        ),
    ] = "",
    scores: Annotated[
        str, typer.Option(help="Names with commas between them, or all; without it all that are quick.")
    ] = "",
    fuse: Annotated[str, typer.Option(help="Scores to combine, names with commas; needs --fit-on.")] = "",
    fit_on: Annotated[
        Path | None, typer.Option(help="Validation table: calibrates every score and fits --fuse.")
    ] = None,
    k: Annotated[int, typer.Option(help="Matches a query.")] = 10,
    policy: Annotated[
        NoPositives | None,
        typer.Option(help="Queries without positives; by default as the table's protocol says, else fail."),
    ] = None,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples; 0 leaves intervals out.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the bootstrap.")] = 0,
    name: Annotated[str, typer.Option(help="Name in tables (default: that of the model or file).")] = "",
    resize: Annotated[
        str, typer.Option(help="Images as the model wants them (model) or as the protocol says (protocol).")
    ] = "model",
    cache: Annotated[
        Path | None,
        typer.Option(help="Where embeddings are kept (default: $KAPPAPLACE_CACHE or the user's)."),
    ] = None,
    root: Annotated[Path | None, typer.Option(help="Where the images lie now, if they have moved.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps.")] = "",
    batch_size: Annotated[int, typer.Option(help="Images embedded together.")] = 32,
    protocol: Annotated[
        str, typer.Option(help="paper: every table of the paper for which data is there.")
    ] = "",
    data: Annotated[
        Path | None, typer.Option(help="With --protocol: folder with PROTOCOL.parquet tables.")
    ] = None,
    report: Annotated[bool, typer.Option(help="Write report.html.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Judge retrieval and every uncertainty score, with intervals, per set and pooled.

    Examples:

        kappaplace evaluate walk.parquet --out results/walk

        kappaplace evaluate runs/pt/model pitts30k.parquet sfxl.parquet --out results/pt

        kappaplace evaluate cosplace-resnet50-512 walk.parquet --scores l2,pa,margin --out results/walk

        kappaplace evaluate --similarities SPED.npz --positives SPED.json --method NetVLAD --out netvlad

        kappaplace evaluate --descriptors q.npy r.npy --uncertainty mine.csv walk.parquet --out results/mine

        kappaplace evaluate runs/pt/model test.parquet --fuse margin,pa --fit-on val.parquet --out fused

        kappaplace evaluate --protocol paper --data tables/ runs/pt/model --out results/paper
    """
    from kappaplace.evaluation import Choices, Machine
    from kappaplace.files import make_folder

    given, own = list(words or []), list(uncertainty or [])
    if resize not in ("model", "protocol"):
        raise KappaPlaceError(f"--resize is model or protocol, not {resize!r}.")
    _check_inputs(bool(similarities), descriptors is not None, protocol, kappa is not None)
    by = (("protocol", protocol), ("similarities", similarities), ("descriptors", descriptors))
    _check_options(
        {
            "--positives": bool(positives),
            "--neighborhood": bool(neighborhood),
            "--method": bool(method),
            "--data": data is not None,
            "--uncertainty": bool(own),
            "--fuse": bool(fuse),
            "--fit-on": fit_on is not None,
        },
        next((kind for kind, stated in by if stated), "model"),
    )
    if (similarities or descriptors is not None) and (fuse or fit_on):
        raise KappaPlaceError("--fuse and --fit-on need a model; give MODEL TABLE… instead.")
    fused = tuple(part.strip() for part in fuse.split(",") if part.strip())
    choices = Choices(scores, k, policy, resamples, seed, fused)
    machine = Machine(cache, device or None, batch_size, root)
    make_folder(out)  # before the work, not after it
    if protocol:
        _paper(given, data, out, choices, machine, report, as_json)
        return
    options: dict[str, Any] = {"name": name, "neighborhood": neighborhood, "own": own, "root": root}
    tables = [Path(word) for word in given]
    if similarities:
        from kappaplace.evaluation import evaluate_matrices

        results = list(
            evaluate_matrices(similarities, positives or [], tables, choices, method=method, **options)
        )
    elif descriptors is not None:
        from kappaplace.evaluation import evaluate_descriptors

        options["device"] = machine.device
        results = [evaluate_descriptors(descriptors, kappa, positives or [], tables, choices, **options)]
    else:
        results = [_of_model(given, choices, machine, name=name, validation=fit_on, own=own, resize=resize)]
    _write_and_show(results, out, report, as_json)


def _of_model(words: list[str], choices: Choices, machine: Machine, **options: Any) -> EvaluationResult:
    """A model on its tables; without a model, the one that comes with the package."""
    from kappaplace.evaluation import evaluate_model
    from kappaplace.models import DEFAULT

    alone = bool(words) and _is_table(Path(words[0]))
    tables = [Path(word) for word in (words if alone else words[1:])]
    if not tables:
        raise KappaPlaceError(
            "Give a model and at least one table, or --similarities, or --descriptors; see "
            "`kappaplace evaluate --help`."
        )
    return evaluate_model(DEFAULT if alone else words[0], tables, choices, machine, **options)


def _is_table(word: Path) -> bool:
    """Tables are told by their suffix; models are folders, names or other files."""
    return word.suffix.lower() in TABLE_FORMATS


def _check_inputs(similarities: bool, descriptors: bool, protocol: str, kappa: bool) -> None:
    if similarities + descriptors + bool(protocol) > 1:
        raise KappaPlaceError("Give one of --similarities, --descriptors and --protocol.")
    if kappa and not descriptors:
        raise KappaPlaceError("--kappa belongs to --descriptors.")
    if protocol not in ("", "paper"):
        raise KappaPlaceError(f"--protocol knows paper only, not {protocol!r}.")


_BELONGS = {
    "model": ("--uncertainty", "--fuse", "--fit-on"),
    "similarities": ("--positives", "--neighborhood", "--method", "--uncertainty", "--fuse", "--fit-on"),
    "descriptors": ("--positives", "--neighborhood", "--uncertainty", "--fuse", "--fit-on"),
    "protocol": ("--data",),
}


def _check_options(given: dict[str, bool], kind: str) -> None:
    """An option that would be ignored is told: its user believes in it."""
    for option, used in given.items():
        if used and option not in _BELONGS[kind]:
            where = {"model": "a model", "protocol": "--protocol paper"}.get(kind, f"--{kind}")
            raise KappaPlaceError(f"{option} has no meaning with {where}; leave it out.")


def _write_and_show(results: list[EvaluationResult], out: Path, report: bool, as_json: bool) -> None:
    """Results into DIR, or of several methods into one folder each below it."""
    import json

    from rich.console import Console

    from kappaplace.cli.show import set_tables
    from kappaplace.evaluation import plain, write_result

    console = Console()
    answers = []
    for result in results:
        folder = out if len(results) == 1 else out / result.name.replace("/", "_")
        (folder / "report.html").unlink(missing_ok=True)  # it would speak of the results before
        write_result(result, folder)
        files = {"results": str(folder)}
        if report:
            files["report"] = str(_write_report(result, folder))
        answers.append({"name": result.name, "metrics": plain(result.metrics), "files": files})
        if not as_json:
            for table in set_tables(result):
                console.print(table)
            console.print(f"{result.name}: everything is in [bold]{folder}[/bold].")
    if as_json:
        typer.echo(json.dumps(answers[0] if len(answers) == 1 else {"evaluations": answers}))


def _write_report(result: EvaluationResult, folder: Path) -> Path:
    from kappaplace.reports import write_report

    return write_report(result, folder)


def _paper(
    models: list[str],
    data: Path | None,
    out: Path,
    choices: Choices,
    machine: Machine,
    report: bool,
    as_json: bool,
) -> None:
    """The paper's numbers beside ours, and each model's evaluation in a folder of its own."""
    import json

    from rich.console import Console

    from kappaplace.cli.show import missing_table, paper_tables
    from kappaplace.evaluation import compare_with_paper, paper_rows, plain, write_paper, write_result

    if data is None:
        raise KappaPlaceError(
            "--protocol paper needs --data DIR with tables made by `kappaplace data import`."
        )
    comparison = compare_with_paper(models, data, choices, machine)
    for role, result in comparison.evaluations.items():
        write_result(result, out / role)
        if report:
            _write_report(result, out / role)
    file = write_paper(comparison, out)
    rows = paper_rows(comparison)
    if report:
        from kappaplace.reports import write_paper_report

        write_paper_report(rows, out)
    if as_json:
        typer.echo(json.dumps(plain({"rows": rows, "files": {"paper": str(file)}})))
        return
    console = Console()
    for table in (*paper_tables(rows), missing_table(rows)):
        console.print(table)
    console.print(f"All rows are in [bold]{file}[/bold].")


def compare(
    folders: Annotated[list[Path], typer.Argument(help="Folders that `kappaplace evaluate` wrote.")],
    metric: Annotated[
        list[str] | None, typer.Option(help="What to compare: AUROC, AURC, ECE@1, R@1, …; repeatable.")
    ] = None,
    against: Annotated[
        str, typer.Option(help="Of a single folder: the score with which its others are compared.")
    ] = "",
    out: Annotated[Path | None, typer.Option(help="Folder for comparison.csv and one report of all.")] = None,
    resamples: Annotated[
        int | None, typer.Option(min=1, help="Bootstrap resamples (default: 1000, more for many tests).")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the bootstrap.")] = 0,
    report: Annotated[bool, typer.Option(help="With --out: write report.html.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Tell which evaluation is better, per set and pooled.

    Every evaluation is tested against the first on the same queries (paired bootstrap, Holm-corrected); a
    single one compares its scores with one of them.

    Examples:

        kappaplace compare results/pt results/jt

        kappaplace compare results/mine --against mine

        kappaplace compare results/pt results/jt --metric AURC --metric ECE@1 --out results/pt-or-jt
    """
    import json

    from rich.console import Console

    from kappaplace.cli.show import comparison_table
    from kappaplace.evaluation import compare, comparison_rows, plain, read_result, write_comparison

    results = [read_result(folder) for folder in folders]
    tables = [
        compare(results, each, against=against, resamples=resamples, seed=seed)
        for each in metric or ["AUROC", "R@1"]
    ]
    if out is not None:
        write_comparison(tables, out)
        if report:
            from kappaplace.reports import write_report

            write_report(results[0], out, results[1:])
    if as_json:
        typer.echo(json.dumps(plain({"rows": comparison_rows(tables)})))
        return
    console = Console()
    for table in tables:
        for compared in table.sets:
            console.print(comparison_table(compared, table.names))
    if out is not None:
        console.print(f"The comparison is in [bold]{out}[/bold].")
