"""`kappaplace evaluate`: every score and every metric, from a model, descriptors or a similarity matrix."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kappaplace.checks import within
from kappaplace.cli.options import AsJson, Device, VerbGroup, command
from kappaplace.data import TABLE_FORMATS, NoPositives
from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder
from kappaplace.records import Help, Hidden, Setting

if TYPE_CHECKING:
    from kappaplace.evaluation import Choices, EvaluationResult, Machine

_REPLACED = {"--similarities": "matrix", "--descriptors": "descriptors", "--protocol": "paper"}
"""Options of earlier versions that are commands now."""


class _Evaluate(VerbGroup):
    def with_command(self, words: list[str]) -> list[str]:
        """Translate the options that earlier versions had instead of commands."""
        if words[:1] == ["model"] and any(map(_is_table, words[1:2])) and Path("model").exists():
            raise KappaPlaceError(  # earlier versions used the folder
                '"evaluate model" is ambiguous here, because there is a folder "model". Pass ./model for '
                "this folder, or a name such as kappaplace-lite0, before the table."
            )
        if not words or words[0] in self.commands:
            return words
        tokens: list[str] = []
        for word in words:
            tokens += word.split("=", 1) if word.partition("=")[0] in _REPLACED else [word]
        replaced = _REPLACED.keys() & set(tokens)
        if not replaced:
            return ["model", *words]
        if len(replaced) > 1:
            raise KappaPlaceError(
                "--similarities, --descriptors and --protocol cannot be combined. Pass only one of them."
            )
        flag = replaced.pop()
        if flag == "--similarities":  # repeatable; its files become arguments
            return ["matrix", *(token for token in tokens if token != flag)]
        at = tokens.index(flag)
        if flag == "--descriptors":
            return ["descriptors", *tokens[at + 1 : at + 3], *tokens[:at], *tokens[at + 3 :]]
        if tokens[at + 1 : at + 2] != ["paper"]:
            raise KappaPlaceError(f'--protocol must be "paper", got "{"".join(tokens[at + 1 : at + 2])}".')
        return ["paper", *tokens[:at], *tokens[at + 2 :]]


app = typer.Typer(cls=_Evaluate, no_args_is_help=True)


@app.callback()
def evaluate() -> None:
    """Evaluate retrieval and every uncertainty score, with confidence intervals, per dataset and pooled.

    Results, a report and figures are written to the folder --out.

    Examples:

        kappaplace evaluate model runs/pt/model pitts30k.parquet sfxl.parquet --out results/pt

        kappaplace evaluate matrix SPED.npz --positives SPED.json --method NetVLAD --out results/netvlad

        kappaplace evaluate descriptors q.npy r.npy walk.parquet --uncertainty mine.csv --out results/mine

        kappaplace evaluate paper runs/pt/model --data tables/ --out results/paper

    `kappaplace evaluate MODEL TABLE…` is short for `kappaplace evaluate model MODEL TABLE…`.
    """


@dataclass(frozen=True)
class Output:
    """Options for writing and printing results."""

    out: Annotated[Path, Help("Folder for the results and the report.")] = Path("evaluation")
    report: Annotated[bool, Help("Write report.html.")] = True
    as_json: Annotated[bool, Help("Print JSON instead of tables.", ("--json",))] = False

    def show(self, results: list[EvaluationResult]) -> None:
        """Write the results to the folder, or several to one subfolder each, and print them."""
        from rich.console import Console

        from kappaplace.cli.show import ece_notes, set_tables
        from kappaplace.evaluation import plain, warnings_of

        console = Console()
        answers = []
        for result in results:
            folder = self.out if len(results) == 1 else self.out / result.name.replace("/", "_")
            (folder / "report.html").unlink(missing_ok=True)  # an old report would show earlier results
            files = self.write(result, folder)
            answer = {"name": result.name, "metrics": plain(result.metrics), "files": files}
            answers.append({**answer, "warnings": warnings_of(result)})
            if not self.as_json:
                for text in (*set_tables(result), *ece_notes([result])):
                    console.print(text)
                console.print(f"{result.name}: results written to [bold]{folder}[/bold].")
        if self.as_json:
            typer.echo(json.dumps(answers[0] if len(answers) == 1 else {"evaluations": answers}))

    def write(self, result: EvaluationResult, folder: Path) -> dict[str, str]:
        """Write one result and its report to a folder; return the paths."""
        from kappaplace.evaluation import write_result
        from kappaplace.reports import write_report

        write_result(result, folder)
        files = {"results": str(folder)}
        return {**files, "report": str(write_report(result, folder))} if self.report else files


@dataclass(frozen=True)
class EvaluateOptions:
    """Options of the measurement."""

    scores: Annotated[
        str,
        Help('Comma-separated score names, or "all". Default: all except "geometric", which is slow.'),
    ] = ""
    k: Annotated[int, Help("Number of matches per query.")] = 10
    policy: Annotated[
        NoPositives | None,
        Help(
            "Policy for queries without positives: fail (count as failures), skip (exclude) or error. "
            "Default: the policy of the table's protocol, otherwise fail."
        ),
    ] = None
    resamples: Annotated[int, Setting("number of bootstrap resamples; 0 omits the intervals.")] = 1000
    seed: Annotated[int, Setting("random seed for the bootstrap.")] = 0
    keep_twins: Annotated[
        bool, Help("Also evaluate queries that are near-copies of references (easier than real queries).")
    ] = False
    root: Annotated[Path | None, Help("Folder of the images, if they have moved.")] = None

    def choices(self, fuse: str = "") -> Choices:
        """Return the checked options of an evaluation."""
        from kappaplace.evaluation import Choices

        names = tuple(part.strip() for part in fuse.split(",") if part.strip())
        return Choices(
            self.scores, self.k, self.policy, self.resamples, self.seed, names, keep_twins=self.keep_twins
        )


@dataclass(frozen=True)
class MachineOptions:
    """Options for embedding images, which do not change the results."""

    device: Annotated[str, Help("Device: cpu, cuda, cuda:1 or mps. Default: the first GPU, or cpu.")] = ""
    batch_size: Annotated[int, Help("Number of images to embed at once.")] = 32
    cache: Annotated[Path | None, Hidden("Folder of cached embeddings. Default: $KAPPAPLACE_CACHE.")] = None

    def machine(self, root: Path | None) -> Machine:
        """Return the checked options."""
        from kappaplace.evaluation import Machine

        return Machine(self.cache, self.device or None, self.batch_size, root)


@dataclass(frozen=True)
class NamedOptions(EvaluateOptions):
    """Options of the measurement, its name, and your own scores."""

    uncertainty: Annotated[
        list[Path],
        Help("CSV file with your own score: query,uncertainty or query,reference,uncertainty; repeatable."),
    ] = field(default_factory=list)
    name: Annotated[str, Help("Name in tables and reports. Default: the name of the model or file.")] = ""


@dataclass(frozen=True)
class ModelOptions(NamedOptions):
    """Options of `kappaplace evaluate model`."""

    fuse: Annotated[str, Help("Comma-separated scores to combine into one; requires --fit-on.")] = ""
    fit_on: Annotated[Path | None, Help("Validation table for calibrating scores and fitting --fuse.")] = None
    encoder: Annotated[
        str,
        Help(
            "Your own encoder: package.module:function, which is executed and returns a torch module. Omit "
            "MODEL, or pass the folder of a κ head that was trained for it."
        ),
    ] = ""
    resize: Annotated[
        Literal["model", "protocol"],
        Setting("resize images as the model expects (model) or as the benchmark specifies (protocol)."),
    ] = "model"


@dataclass(frozen=True)
class FileOptions(NamedOptions):
    """Options of `kappaplace evaluate matrix` and `descriptors`."""

    positives: Annotated[
        list[Path],
        Help("Correct references of each query: .json (list of lists), .npy or .npz; one file per dataset."),
    ] = field(default_factory=list)
    neighborhood: Annotated[
        str,
        Help(
            "Rule by which references show the same place, without a table: frames:5 (within 5 "
            "frames) or self.",
            ("--neighborhood", "--neighbourhood"),
        ),
    ] = ""


def _is_table(file: str | Path) -> bool:
    """Return whether the suffix is that of a table; models are folders, names or other files."""
    return Path(file).suffix.lower() in TABLE_FORMATS


@command(app)
def model(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] TABLE…",
            help="Model (a folder, weights file or name; default: the pretrained model) and the tables to "
            "evaluate it on.",
        ),
    ],
    output: Output,
    options: ModelOptions,
    machine: MachineOptions,
) -> None:
    """Evaluate a model on one or more tables.

    Embeddings are cached in $KAPPAPLACE_CACHE, so a second run with other scores is fast.

    Examples:

        kappaplace evaluate model walk.parquet --out results/walk

        kappaplace evaluate model runs/pt/model pitts30k.parquet sfxl.parquet --out results/pt

        kappaplace evaluate model cosplace-resnet50-512 walk.parquet --scores l2,pa,margin --out results/walk

        kappaplace evaluate model runs/pt/model test.parquet --fuse margin,pa --fit-on val.parquet --out fused

        kappaplace evaluate model walk.parquet --encoder mine.models:build --out results/mine
    """
    from kappaplace.evaluation import evaluate_model
    from kappaplace.models import DEFAULT, load_encoder, load_model, plain_encoder

    pretrained = _is_table(words[0])
    tables = [Path(word) for word in (words if pretrained else words[1:])]
    if not tables:
        raise KappaPlaceError("evaluate needs at least one table, got none. Pass MODEL TABLE….")
    choices, embedding = options.choices(options.fuse), machine.machine(options.root)
    make_folder(output.out)  # before the work, so that an error appears at once
    source = DEFAULT if pretrained else words[0]
    own = load_encoder(options.encoder) if options.encoder else None
    result = evaluate_model(
        source if own is None else plain_encoder(own) if pretrained else load_model(source, encoder=own),
        tables,
        choices,
        embedding,
        name=options.name or options.encoder.partition(":")[2],
        validation=options.fit_on,
        own=options.uncertainty,
        resize=options.resize,
    )
    output.show([result])


@command(app)
def descriptors(
    queries: Annotated[
        Path, typer.Argument(metavar="QUERIES", help="Descriptors of the queries, one row per query (.npy).")
    ],
    references: Annotated[
        Path,
        typer.Argument(
            metavar="REFERENCES", help="Descriptors of the references, one row per reference (.npy)."
        ),
    ],
    output: Output,
    options: FileOptions,
    tables: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[TABLE]", help="Table with positions or correct references."),
    ] = None,
    kappa: Annotated[
        tuple[Path, Path] | None, typer.Option(help="κ of the queries and of the references: two .npy files.")
    ] = None,
    device: Device = "",
) -> None:
    """Evaluate descriptors of any model, with or without κ.

    The correct references come from a table or from --positives.

    Examples:

        kappaplace evaluate descriptors q.npy r.npy walk.parquet --out results/mine

        kappaplace evaluate descriptors q.npy r.npy walk.parquet --uncertainty mine.csv --out results/mine

        kappaplace evaluate descriptors q.npy r.npy --positives positives.json --neighborhood self --out mine
    """
    from kappaplace.evaluation import Labels, Machine, evaluate_descriptors

    choices, machine = options.choices(), Machine(device=device or None)
    make_folder(output.out)
    result = evaluate_descriptors(
        (queries, references),
        kappa,
        Labels(options.positives, tables or [], options.neighborhood, options.root),
        choices,
        name=options.name,
        own=options.uncertainty,
        device=machine.device,
    )
    output.show([result])


@command(app)
def matrix(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE… [TABLE…]",
            help="Similarity matrices (queries × references): one .npy or .npz file per dataset, where .npz "
            "has one matrix per method. Optional: one table per dataset, with positions or correct "
            "references.",
        ),
    ],
    output: Output,
    options: FileOptions,
    method: Annotated[str, typer.Option(help="Matrix of the .npz files to evaluate. Default: all.")] = "",
) -> None:
    """Evaluate similarity matrices of any method; no model is needed.

    Similarities are cosines. The correct references come from tables or from --positives.

    Examples:

        kappaplace evaluate matrix SPED.npz --positives SPED.json --method NetVLAD --out results/netvlad

        kappaplace evaluate matrix similarities.npy test.parquet --out results/mine
    """
    from kappaplace.evaluation import Labels, evaluate_matrices

    matrices = [file for file in files if not _is_table(file)]
    if not matrices:
        raise KappaPlaceError(
            "evaluate matrix needs at least one .npy or .npz file, got only tables. "
            "Pass a similarity matrix, too."
        )
    choices = options.choices()
    make_folder(output.out)
    labels = Labels(
        options.positives, [file for file in files if _is_table(file)], options.neighborhood, options.root
    )
    results = evaluate_matrices(
        matrices, labels, choices, method=method, name=options.name, own=options.uncertainty
    )
    output.show(list(results))


@command(app)
def paper(
    data: Annotated[Path, typer.Option(help="Folder with one table per benchmark, named PROTOCOL.parquet.")],
    output: Output,
    options: EvaluateOptions,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ROLE=MODEL]…",
            help="Models to compare with the models of the paper: MODEL or ROLE=MODEL. Default role: pt if "
            "the model predicts κ, stun if it predicts a variance, otherwise baseline.",
        ),
    ] = None,
    *,
    cost: Annotated[
        Path | None, typer.Option(help="CSV file with time and memory, written by benchmarks/paper_cost.py.")
    ] = None,
    machine: MachineOptions,
) -> None:
    """Reproduce the tables of the paper for which you have the data, next to the published numbers.

    Every table and figure gets a status: measured, not comparable (other data or another backbone),
    measurable or not measurable. For measurable ones, the missing data and models are listed.

    Examples:

        kappaplace evaluate paper runs/pt/model --data tables/ --out results/paper

        kappaplace evaluate paper pt=runs/pt/model baseline=runs/base/model --data tables/ --out results/paper
    """
    from rich.console import Console

    from kappaplace.cli.show import ece_notes, paper_overview, paper_tables
    from kappaplace.evaluation import compare_with_paper, paper_rows, plain, write_paper

    choices, embedding = options.choices(), machine.machine(options.root)
    make_folder(output.out)
    comparison = compare_with_paper(models or [], data, choices, embedding, cost)
    for role, result in comparison.evaluations.items():
        output.write(result, output.out / role)
    file = write_paper(comparison, output.out)
    rows = paper_rows(comparison)
    if output.report:
        from kappaplace.reports import write_paper_report

        write_paper_report(comparison, output.out)
    items = [item._asdict() for item in comparison.items]
    if output.as_json:
        typer.echo(json.dumps(plain({"rows": rows, "items": items, "files": {"paper": str(file)}})))
        return
    console = Console()
    notes = ece_notes(list(comparison.evaluations.values())) if comparison.evaluations else []
    for text in (*paper_tables(rows), paper_overview(items), *notes):
        console.print(text)
    console.print(f"All rows are in [bold]{file}[/bold].")


@dataclass(frozen=True)
class CompareOptions:
    """Options of the comparison and of its output."""

    metric: Annotated[
        list[str],
        Help("Metric to compare: AUROC, AURC, ECE@1, R@1, …; repeatable. Default: AUROC and R@1."),
    ] = field(default_factory=list)
    against: Annotated[str, Help("Score to compare the other scores with, if you pass a single folder.")] = ""
    out: Annotated[Path | None, Help("Folder for comparison.csv and a report of all evaluations.")] = None
    resamples: Annotated[
        int | None, Help("Number of bootstrap resamples. Default: 1000, or more for many tests.")
    ] = None
    seed: Annotated[int, Help("Random seed for the bootstrap.")] = 0
    report: Annotated[bool, Help("Write report.html to the folder --out.")] = True
    seeds: Annotated[
        bool,
        Help("Treat the folders as runs with different seeds, and print mean ± std over them.", ("--seeds",)),
    ] = False

    def __post_init__(self) -> None:
        within(self.seed, "seed", 0)
        if self.resamples is not None:
            within(self.resamples, "resamples", 1)


def compare(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER…", help="Folders written by `kappaplace evaluate`.")
    ],
    options: CompareOptions,
    as_json: AsJson = False,
) -> None:
    """Test which evaluation is better, per dataset and pooled.

    Every evaluation is compared with the first one on the same queries (paired bootstrap with Holm's
    correction). For a single evaluation, its scores are compared with one of them. With --seeds, the
    evaluations are runs of one method, and the result is mean ± std of every score.

    Examples:

        kappaplace compare results/pt results/jt

        kappaplace compare results/mine --against mine

        kappaplace compare results/pt results/jt --metric AURC --metric ECE@1 --out results/pt-or-jt

        kappaplace compare results/seed-0 results/seed-1 results/seed-2 --seeds --out results/seeds
    """
    from rich.console import Console

    from kappaplace.cli.show import comparison_table, ece_notes
    from kappaplace.evaluation import compare, comparison_rows, plain, read_result, write_comparison

    out = options.out
    results = [read_result(folder) for folder in folders]
    if options.seeds:
        return _seeds(results, options.metric, out, as_json)
    tables = [
        compare(results, each, against=options.against, resamples=options.resamples, seed=options.seed)
        for each in options.metric or ["AUROC", "R@1"]
    ]
    if out is not None:
        write_comparison(tables, out)
        if options.report:
            from kappaplace.reports import write_report

            write_report(results[0], out, results[1:])
    if as_json:
        typer.echo(json.dumps(plain({"rows": comparison_rows(tables)})))
        return
    console = Console()
    for table in tables:
        for compared in table.sets:
            console.print(comparison_table(compared, table.names))
    if any("ECE@" in each for each in options.metric):
        for text in ece_notes(results):
            console.print(text)
    if out is not None:
        console.print(f"Comparison written to [bold]{out}[/bold].")


def _seeds(results: list[EvaluationResult], metrics: list[str], out: Path | None, as_json: bool) -> None:
    from rich.console import Console

    from kappaplace.cli.show import ece_notes, seed_tables
    from kappaplace.evaluation import plain, spread_over_seeds, write_rows

    rows = [row._asdict() for row in spread_over_seeds(results, metrics)]
    if out is not None:
        write_rows(make_folder(out) / "seeds.csv", rows, list(rows[0]))
    if as_json:
        typer.echo(json.dumps(plain({"rows": rows})))
        return
    console = Console()
    labels = {name: score.label for each in results[0].sets for name, score in each.scores.items()}
    for text in (*seed_tables(rows, labels, metrics), *ece_notes(results)):
        console.print(text)
    if out is not None:
        console.print(f"Mean and standard deviation of every metric written to [bold]{out}[/bold].")
