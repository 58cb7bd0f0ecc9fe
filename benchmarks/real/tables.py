"""Tables and plots from the columns of benchmarks/real/run.py.

python benchmarks/real/tables.py --columns DIR --out results [--sealed]

``--sealed`` includes the two datasets that are evaluated only once, at the end. Needs PYTHONPATH=benchmarks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from load import ALL, OPEN, Run, load_runs, others
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sets import ROUTES

from kappaplace.calibration.combination import Combination, fit_combination
from kappaplace.metrics.bootstrap import Resampling, bootstrap, compare
from kappaplace.metrics.calibration import BOTH_TAILS, UPPER_TAIL, expected_calibration_error
from kappaplace.metrics.probability import brier, smooth_ece
from kappaplace.metrics.selective import auc_pr, augrc, auroc, coverage_at_risk
from kappaplace.uncertainty import SCORES
from record import Option, parse_options, save_rows

Row = dict[str, float | int | str]
DESCRIPTOR = ("cosine", "pa", "margin", "aliasing", "z-score")
"""Scores of the plain logistic baseline."""
PATCH = ("patches", "patch-margin")
COMBINATIONS: dict[str, tuple[str, ...]] = {
    "logistic of cosine": ("cosine",),
    "logistic of cosine and margin": ("cosine", "margin"),
    "logistic baseline": DESCRIPTOR,
    "logistic baseline + κ": (*DESCRIPTOR, "log-kappa"),
    "logistic of patches": ("patches",),
    "patches + patch margin": PATCH,
    "patches + cosine + margin": (*PATCH, "cosine", "margin"),
    "patches + cosine + margin + κ": (*PATCH, "cosine", "margin", "log-kappa"),
    "logistic baseline, curves": DESCRIPTOR,
    "logistic baseline + κ, curves": (*DESCRIPTOR, "log-kappa"),
    "patches + cosine + margin, curves": (*PATCH, "cosine", "margin"),
    "patches + cosine + margin + κ, curves": (*PATCH, "cosine", "margin", "log-kappa"),
    "all, curves": (*PATCH, *DESCRIPTOR),
    "all + κ, curves": (*PATCH, *DESCRIPTOR, "log-kappa"),
}
BENDS = 3
"""Bends of combinations with curves (`fit_combination`), at the quartiles of each score."""
MAIN = {"efficientnet_lite0": "layers-mlp", "resnet50_v1": "layers-mlp-8"}
"""The head that provides κ for combinations; selected on the validation part."""


def score(run: Run, head: str, where: str, name: str, variant: str) -> NDArray[np.float64]:
    if name == "log-kappa":
        return -np.log(run.score(head, where, "kappa_q", variant))
    return run.score(head, where, name, variant)


def mean_over(values: Iterable[float]) -> float:
    return float(np.nanmean(list(values)))


def groups(sets: Sequence[str]) -> dict[str, list[str]]:
    """Return every dataset alone, and the groups of the tables."""
    seen, unseen = [s for s in sets if s in ROUTES], [s for s in sets if s not in ROUTES]
    return {**{s: [s] for s in sets}, "seen routes": seen, "unseen sets": unseen, "all": list(sets)}


def summarize(
    run: Run, head: str, name: str, sets: Sequence[str], measure: Callable[..., float], at: int = 1
) -> dict[str, float]:
    """Return a metric of a score on each dataset, as means over groups, and pooled."""
    pairs = {s: (run.score(head, s, name), run.right(head, s, at=at)) for s in sets}
    each = {s: measure(*pairs[s]) for s in sets}
    out = {g: mean_over(each[s] for s in members) for g, members in groups(sets).items() if members}
    columns = [np.concatenate([pairs[s][i] for s in sets]) for i in (0, 1)]
    return out | {"pooled": measure(*columns)}


def ece(name: str) -> Callable[[NDArray, NDArray], float]:
    one_sided = name not in SCORES or SCORES[name].one_sided
    return lambda u, y: expected_calibration_error(u, y, UPPER_TAIL if one_sided else BOTH_TAILS)


def recipe_rows(runs: Sequence[Run], sets: Sequence[str]) -> Iterator[Row]:
    """Question 1: all recipes with the scores of the paper."""
    for run in runs:
        for head in heads_of(run):
            names = ["l2", "pa"]
            own = "variance" if f"{head}/{sets[0]}/clean/variance" in run.columns else "kappaplace"
            names += ["inverse-kappa", own] if own == "kappaplace" else [own]
            recall = {
                k: summarize(run, head, "l2", sets, lambda _, y: float(y.mean()), at=k) for k in (1, 5, 10)
            }
            for name in names:
                measures = {
                    **{f"ECE@{k}": summarize(run, head, name, sets, ece(name), at=k) for k in (1, 5, 10)},
                    "AUROC": summarize(run, head, name, sets, auroc),
                    "AUGRC": summarize(run, head, name, sets, augrc),
                    "AUC-PR": summarize(run, head, name, sets, auc_pr),
                }
                for group in measures["AUROC"]:
                    results = {f"R@{k}": recall[k][group] for k in recall}
                    results |= {m: values[group] for m, values in measures.items()}
                    yield _row(run, {"model": head, "score": name, "sets": group}, results)


def heads_of(run: Run) -> list[str]:
    names = dict.fromkeys(key.split("/")[0] for key in run.columns if key.endswith(("kappa_q", "/variance")))
    return list(names)


def kappa_rows(runs: Sequence[Run], sets: Sequence[str]) -> Iterator[Row]:
    """Question 2: what makes κ informative."""
    validation = [f"val/{s}" for s in ROUTES]
    for run in runs:
        for head in heads_of(run):
            if f"{head}/{sets[0]}/clean/kappa_q" not in run.columns:
                continue
            results: Row = {}
            for title, members in (("validation", validation), ("test", sets)):
                kappa = np.concatenate([run.score(head, s, "kappa_q", "damaged") for s in members])
                level = np.concatenate([run.columns[f"damage/{s}/level"] for s in members])
                right = np.concatenate([run.right(head, s, "damaged") for s in members])
                results[f"Spearman of κ and damage, {title}"] = float(spearmanr(kappa, level)[0])
                results[f"AUROC of κ, damaged, {title}"] = auroc(-kappa, right)
            clean = [(run.score(head, s, "inverse-kappa"), run.right(head, s)) for s in sets]
            results["AUROC of κ, undamaged, pooled"] = auroc(
                *(np.concatenate(x) for x in zip(*clean, strict=True))
            )
            results["AUROC of κ, undamaged, mean"] = mean_over(auroc(*pair) for pair in clean)
            yield _row(run, {"head": head, "encoder": run.encoder_of(head)}, results)


def fit_titled(title: str, features: NDArray, right: NDArray) -> Combination:
    return fit_combination(features, right, COMBINATIONS[title], bends=BENDS * title.endswith("curves"))


def left_out(
    run: Run, title: str, sets: Sequence[str], variant: str
) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
    """Return probabilities and outcomes of every dataset, fitted on the other families."""
    head, names = MAIN[run.backbone], COMBINATIONS[title]
    columns = {s: np.stack([score(run, head, s, n, variant) for n in names], 1) for s in sets}
    right = {s: run.right(head, s, variant) for s in sets}
    made = {}
    for s in sets:
        fit_on = others(s, sets)
        combination = fit_titled(
            title, np.concatenate([columns[t] for t in fit_on]), np.concatenate([right[t] for t in fit_on])
        )
        made[s] = combination.probability(columns[s])
    return made, right


def match_rows(runs: Sequence[Run], sets: Sequence[str]) -> Iterator[Row]:
    """Questions 3 and 4: single scores and combinations, on undamaged and on damaged queries."""
    for run in runs:
        if not run.has(MAIN[run.backbone]):
            continue
        for variant in ("clean", "damaged"):
            # SIFT inliers are available only after benchmarks/real/geometric.py.
            counted = f"contrastive/{sets[0]}/{variant}/geometric" in run.columns
            names = (*DESCRIPTOR, "inverse-kappa", "kappaplace", "expected-likelihood", *PATCH)
            for name in (*names, "geometric") if counted else names:
                u = {s: score(run, MAIN[run.backbone], s, name, variant) for s in sets}
                y = {s: run.right(MAIN[run.backbone], s, variant) for s in sets}
                yield _row(run, {"queries": variant, "score": name}, _ranking(u, y))
            for title in COMBINATIONS:
                p, y = left_out(run, title, sets, variant)
                results = _ranking({s: 1 - p[s] for s in sets}, y)
                whole, truth = (np.concatenate([x[s] for s in sets]) for x in (p, y))
                results |= {
                    "smooth ECE, pooled": smooth_ece(whole, truth),
                    "smooth ECE, mean": mean_over(smooth_ece(p[s], y[s]) for s in sets),
                    "Brier, pooled": brier(whole, truth),
                    "Brier, mean": mean_over(brier(p[s], y[s]) for s in sets),
                }
                yield _row(run, {"queries": variant, "score": title}, results)


def _ranking(u: dict[str, NDArray], y: dict[str, NDArray]) -> Row:
    whole, truth = (np.concatenate(list(x.values())) for x in (u, y))
    return {
        "R@1, pooled": float(truth.mean()),
        "AUROC, pooled": auroc(whole, truth),
        "AUROC, mean": mean_over(auroc(u[s], y[s]) for s in u),
        "coverage at 10 % risk": coverage_at_risk(whole, truth, 0.1),
        "accepted": round(coverage_at_risk(whole, truth, 0.1) * len(truth)),
    }


def paired_rows(runs: Sequence[Run], sets: Sequence[str], block: int = 10) -> Iterator[Row]:
    """Does κ add anything? Differences of pooled AUROC with paired intervals over blocks of queries."""
    comparisons = (
        ("logistic baseline", "logistic baseline + κ"),
        ("patches + cosine + margin", "patches + cosine + margin + κ"),
        ("logistic baseline", "patches + cosine + margin"),
        ("logistic baseline, curves", "logistic baseline + κ, curves"),
        ("patches + cosine + margin, curves", "patches + cosine + margin + κ, curves"),
        ("all, curves", "all + κ, curves"),
        ("patches + cosine + margin", "patches + cosine + margin, curves"),
        ("logistic baseline", "all, curves"),
    )
    for run in runs:
        if not run.has(MAIN[run.backbone]):
            continue
        for variant in ("clean", "damaged"):
            for without, with_it in comparisons:
                p, y = left_out(run, without, sets, variant)
                q, _ = left_out(run, with_it, sets, variant)
                truth = np.concatenate([y[s] for s in sets])
                plan = Resampling.of(len(truth), block=block)
                made = [
                    bootstrap(auroc, [1 - np.concatenate([x[s] for s in sets]), truth], plan) for x in (p, q)
                ]
                results = compare(made[1], made[0])
                yield _row(
                    run,
                    {"queries": variant, "without": without, "with": with_it},
                    {"difference": results.difference, "low": results.low, "high": results.high},
                )


def reranked_rows(runs: Sequence[Run], sets: Sequence[str]) -> Iterator[Row]:
    """R@1 by the descriptor, and after re-ranking ten matches by patch matching."""
    for run in runs:
        for encoder in ("imagenet", "contrastive"):
            if not run.has(encoder):
                continue
            for variant in ("clean", "damaged"):
                plain = {s: float(run.right(encoder, s, variant).mean()) for s in sets}
                ranked = {s: float(run.of(encoder, s, "reranked", variant).mean()) for s in sets}
                for group, members in groups(sets).items():
                    results = {
                        "R@1": mean_over(plain[s] for s in members),
                        "R@1, cells compared": mean_over(ranked[s] for s in members),
                    }
                    yield _row(run, {"encoder": encoder, "queries": variant, "sets": group}, results)


def open_set_rows(runs: Sequence[Run], sets: Sequence[str]) -> Iterator[Row]:
    """Question 6: in-map against out-of-map queries, and the risk if the latter count as failures."""
    for run in runs:
        head = MAIN[run.backbone]
        if not run.has(head):
            continue
        for name in (*DESCRIPTOR, "inverse-kappa", "kappaplace", *PATCH):
            inside = {s: score(run, head, s, name, "clean") for s in sets}
            outside = {s: score(run, head, s, name, "outside") for s in sets}
            u = {s: np.concatenate([inside[s], outside[s]]) for s in sets}
            there = {s: np.arange(len(u[s])) < len(inside[s]) for s in sets}
            right = {s: np.concatenate([run.right(head, s), np.zeros(len(outside[s]), bool)]) for s in sets}
            results: Row = {
                "AUROC in map, mean": mean_over(auroc(u[s], there[s]) for s in sets),
                "AUROC right, mean": mean_over(auroc(u[s], right[s]) for s in sets),
                "coverage at 10 % risk, mean": mean_over(coverage_at_risk(u[s], right[s], 0.1) for s in sets),
            }
            yield _row(run, {"score": name}, results)


def density_rows(runs: Sequence[Run], sets: Sequence[str]) -> Iterator[Row]:
    """Question 5: only every n-th reference."""
    for run in runs:
        head = MAIN[run.backbone]
        routes = [s for s in sets if f"{head}/{s}/thin2/kappa_q" in run.columns]
        for step in (1, 2, 4, 8):
            variant = "clean" if step == 1 else f"thin{step}"
            for name in ("l2", *DESCRIPTOR, "inverse-kappa", "kappaplace"):
                pairs = [(score(run, head, s, name, variant), run.right(head, s, variant)) for s in routes]
                results: Row = {
                    "R@1": mean_over(float(y.mean()) for _, y in pairs),
                    "ECE@1": mean_over(ece(name)(*pair) for pair in pairs),
                    "AUROC": mean_over(auroc(*pair) for pair in pairs),
                }
                yield _row(run, {"every": step, "score": name}, results)


def risk_rows(runs: Sequence[Run], sets: Sequence[str], max_risk: float = 0.1) -> Iterator[Row]:
    """Question 4: a threshold that meets the risk limit on the other families, and its risk on this one."""
    for run in runs:
        for title in ("logistic baseline", "patches + cosine + margin", "patches + cosine + margin, curves"):
            names = COMBINATIONS[title]
            columns = {
                s: np.stack([score(run, MAIN[run.backbone], s, n, "clean") for n in names], 1) for s in sets
            }
            y = {s: run.right(MAIN[run.backbone], s) for s in sets}
            for s in sets:
                there, right = (np.concatenate([x[t] for t in others(s, sets)]) for x in (columns, y))
                combination = fit_titled(title, there, right)
                fitted, here = combination.probability(there), combination.probability(columns[s])
                best = np.argsort(-fitted, kind="stable")
                risk = np.cumsum(~right[best]) / np.arange(1, len(best) + 1)
                within_risk = np.flatnonzero(risk <= max_risk)
                threshold = fitted[best[within_risk[-1]]] if len(within_risk) else np.inf
                accepted = here >= threshold
                wrong = int((accepted & ~y[s]).sum())
                results: Row = {
                    "queries": len(accepted),
                    "accepted": int(accepted.sum()),
                    "wrong": wrong,
                    "realised risk": wrong / max(1, int(accepted.sum())),
                    "chosen risk": max_risk,
                }
                yield _row(run, {"score": title, "set": s}, results)


def _row(run: Run, names: dict[str, str | int], values: dict[str, float | int | str]) -> Row:
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in values.items()}
    return {"backbone": run.backbone, "seed": run.seed, **names, **rounded}


def card_rows(runs: Sequence[Run], sets: Sequence[str]) -> Iterator[Row]:
    """Results for the model card of the shipped model: one row per dataset."""
    run = next(run for run in runs if run.backbone == "efficientnet_lite0" and run.seed == 0)
    head = MAIN[run.backbone]
    p, y = left_out(run, "patches + cosine + margin, curves", sets, "clean")
    for s in sets:
        ranked = run.of(run.encoder_of(head), s, "reranked")
        results = {
            "queries": len(y[s]),
            **{f"R@{k}": round(float(run.right(head, s, at=k).mean()), 3) for k in (1, 5, 10)},
            "R@1, re-ranked": round(float(ranked.mean()), 3),
            "AUROC": round(auroc(1 - p[s], y[s]), 3),
            "smooth ECE": round(smooth_ece(p[s], y[s]), 3),
            "Brier": round(brier(p[s], y[s]), 3),
        }
        yield {"set": f"{s} (seen route)" if s in ROUTES else s, **results}


CONFUSING = 133
"""Number of first queries of ESSEX3IN1 that its authors call confusing; the others are good."""


def essex_rows(runs: Sequence[Run], sets: Sequence[str]) -> Iterator[Row]:
    """Question 7: does κ or any score distinguish the confusing queries from the good ones?"""
    if "essex3in1" not in sets:
        return
    for run in runs:
        head = MAIN[run.backbone]
        right = run.right(head, "essex3in1")
        good = np.arange(len(right)) >= CONFUSING
        p, _ = left_out(run, "all, curves", sets, "clean")
        shown = {name: score(run, head, "essex3in1", name, "clean") for name in (*DESCRIPTOR, *PATCH)}
        shown |= {"inverse-kappa": score(run, head, "essex3in1", "inverse-kappa", "clean")}
        shown |= {"all, curves": 1 - p["essex3in1"]}
        for name, u in shown.items():
            results = {
                "R@1, confusing": float(right[~good].mean()),
                "R@1, good": float(right[good].mean()),
                "median, confusing": float(np.median(u[~good])),
                "median, good": float(np.median(u[good])),
                "AUROC of good": auroc(u, good),
                "AUROC of right": auroc(u, right),
            }
            yield _row(run, {"score": name}, results)


TABLES = {
    "real_recipes": recipe_rows,
    "real_kappa": kappa_rows,
    "real_scores": match_rows,
    "real_paired": paired_rows,
    "real_reranked": reranked_rows,
    "real_open_set": open_set_rows,
    "real_density": density_rows,
    "real_risk": risk_rows,
    "real_card": card_rows,
    "real_essex": essex_rows,
}


def main() -> None:
    arguments = parse_options(
        __doc__,
        columns=Option(Path, required=True),
        out=Option(Path, required=True),
        sealed=False,
        only=",".join(TABLES),
    )
    runs, sets = load_runs(arguments.columns), ALL if arguments.sealed else OPEN
    for name in arguments.only.split(","):
        rows = list(TABLES[name](runs, sets))
        if not rows:
            continue
        save_rows(arguments.out / f"{name}.csv", rows)
        print(f"{name}: {len(rows)} rows", flush=True)


if __name__ == "__main__":
    main()
