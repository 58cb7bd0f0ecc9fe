"""Add the SIFT inliers of each query and its best match to the columns of a run (minutes on a CPU).

python benchmarks/real/geometric.py --data DATA --columns DIR/efficientnet_lite0_0.npz
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sets import FAMILY, test_sets

from kappaplace.retrieval.evidence import Evidence
from kappaplace.retrieval.references import ArrayReferences, Queries
from kappaplace.types import Matches
from kappaplace.uncertainty import score_named
from record import Option, parse_options


def main() -> None:
    arguments = parse_options(__doc__, data=Option(Path, required=True), columns=Option(Path, required=True))
    with np.load(arguments.columns) as stored:
        columns = {name: stored[name] for name in stored.files}
    for name, table in test_sets(arguments.data, tuple(FAMILY)).items():
        prefix = f"contrastive/{name}/clean"
        matches = Matches(
            columns[f"{prefix}/indices"][:, :1].astype(np.int64), columns[f"{prefix}/similarities"][:, :1]
        )
        references = ArrayReferences(paths=table.image_paths(table.reference_rows))
        evidence = Evidence(Queries(images=table.image_paths(table.query_rows)), references, matches)
        columns[f"{prefix}/geometric"] = score_named("geometric").query(evidence).astype(np.float32)
        print(name, len(matches.indices), flush=True)
    np.savez_compressed(arguments.columns, **columns)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
