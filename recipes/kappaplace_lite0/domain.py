"""Add to a shipped calibration what correctly answered queries look like, on sets of several families of
places.

python recipes/kappaplace_lite0/domain.py --calibration calibration.json --model runs/lite0/model \
    --set sped=DATA/sped --set gardens=DATA/gp_dayleft_dayright --set gardens=DATA/gp_nightright_dayleft

The rows are signals of queries, not images. A map with too few labelled queries of its own compares queries
with them before it accepts an answer. Every family has the same number of rows.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from calibrate import gather, read_table

from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.domain import MOST_ROWS, Domain, fit_domain
from kappaplace.errors import KappaPlaceError
from kappaplace.files import replace_file
from kappaplace.models.checkpoint import load_model

LEVEL = 0.005
"""Queries of other places only reject what is farther than all of them: maps differ more than queries of one
map."""
QUERIES = 160
"""Queries per set; those that were answered correctly are candidates."""


def balanced(parts: list[Domain]) -> Domain:
    """Return a domain with the same number of rows of every family, mixed."""
    each = min(MOST_ROWS // len(parts), *(len(part.rows) for part in parts))
    rows = [row for part in parts for row in part.rows[:each]]
    order = np.random.default_rng(0).permutation(len(rows))
    return replace(parts[0], rows=tuple(rows[number] for number in order), level=LEVEL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--set", action="append", required=True, metavar="FAMILY=DIR", dest="sets")
    arguments = parser.parse_args()
    calibration = Calibration.from_dict(json.loads(arguments.calibration.read_text(encoding="utf-8")))
    model, families = load_model(arguments.model), dict[str, list]()
    for word in arguments.sets:
        family, _, folder = word.partition("=")
        families.setdefault(family, []).append((family, read_table(Path(folder))))
    parts = []
    for tables in families.values():
        examples = gather(model, tables, calibration.rerank, most=QUERIES, foreign=0)
        part = fit_domain(examples.domain, examples.right)
        assert part is not None
        parts.append(part)
        print(
            f"{tables[0][0]}: {len(part.rows)} of {len(examples.right)} queries were answered correctly",
            flush=True,
        )
    values = replace(calibration, domain=balanced(parts)).to_dict()
    replace_file(
        arguments.calibration, lambda part: part.write_text(json.dumps(values) + "\n", encoding="utf-8")
    )


if __name__ == "__main__":
    try:
        main()
    except KappaPlaceError as message:
        raise SystemExit(str(message)) from None
