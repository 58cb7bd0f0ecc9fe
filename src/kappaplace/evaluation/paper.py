"""The numbers of the KappaPlace paper as data, each with the table it stands in.

Recall is a share here (the paper prints per cent). ResNet-50 unless a table says otherwise; "pooled" are
SF-XL v1, v2, night and occlusion, Pitts30k and MSLS-val.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["R", "ECE", "match ECE"]


class PaperNumber(NamedTuple):
    """One cell of one table."""

    table: str
    """Label in the paper's source."""
    method: str
    set: str
    metric: str
    value: float
    spread: float | None = None
    """Standard deviation over seeds, where the paper gives one."""
    score: str = ""
    """Our name of the score; empty where no score is involved."""
    role: str = ""
    """Which model it takes: a key of `ROLES`."""


ROLES = {
    "baseline": "CosPlace, ResNet-50, 50 epochs",
    "pt": "KappaPlace-PT, ResNet-50",
    "jt": "KappaPlace-JT, ResNet-50",
    "stun": "STUN student, epoch 6",
    "stun-late": "STUN student, epoch 11",
    "baseline-long": "CosPlace, ResNet-50, 114 epochs",
    "pt-r18": "KappaPlace-PT, ResNet-18",
    "gnll-r18": "GNLL loss, ResNet-18",
    "linear-r18": "linear head, ResNet-18",
    "seeds-r18": "KappaPlace-PT, ResNet-18, one of several seeds (may be given more than once)",
}

V1, V2, PITTS, MSLS, AMSTERTIME, POOLED = (
    "SF-XL v1",
    "SF-XL v2",
    "Pitts30k",
    "MSLS-val",
    "AmsterTime",
    "pooled",
)
NIGHT, OCCLUSION = "SF-XL night", "SF-XL occlusion"

# Set → protocols that may stand for it, the first that is there is taken. The paper does not say whether its
# MSLS-val has 740 queries or all 11,084.
PROTOCOLS_OF: dict[str, tuple[str, ...]] = {
    V1: ("sf-xl-v1",),
    V2: ("sf-xl-v2",),
    NIGHT: ("sf-xl-night",),
    OCCLUSION: ("sf-xl-occlusion",),
    PITTS: ("pitts30k-test",),
    MSLS: ("msls-val-740", "msls-val"),
    AMSTERTIME: ("amstertime",),
}
POOL = (V1, V2, NIGHT, OCCLUSION, PITTS, MSLS)

KS = (1, 5, 10)
_Triple = tuple[float, float, float]
# Method as printed → (role of the model, our score).
_WHO = {
    "L2": ("baseline", "l2"),
    "PA-Score": ("baseline", "pa"),
    "SUE": ("baseline", "log-sue"),
    "KappaPlace-PT": ("pt", "kappaplace"),
    "KappaPlace-JT": ("jt", "kappaplace"),
    "STUN": ("stun", "variance"),
    "KappaPlace-PT 1/κ": ("pt", "inverse-kappa"),
    "KappaPlace-JT 1/κ": ("jt", "inverse-kappa"),
    "GNLL-variant": ("gnll-r18", "variance"),
    "Linear-head": ("linear-r18", "kappaplace"),
    "KappaPlace-PT (ResNet-18)": ("pt-r18", "kappaplace"),
    "L2 (114 epochs)": ("baseline-long", "l2"),
    "STUN epoch 6": ("stun", "variance"),
    "STUN epoch 11": ("stun-late", "variance"),
}


def _cells(
    table: str, kind: Kind, sets: tuple[str, ...], rows: dict[str, tuple[_Triple | None, ...]]
) -> list[PaperNumber]:
    """Rows of triples (K = 1, 5, 10), one triple a set; None where the paper has none."""
    cells = []
    for method, triples in rows.items():
        role, score = _WHO[method]
        for where, triple in zip(sets, triples, strict=True):
            for k, value in zip(KS, triple or (), strict=False):
                share = round(value / 100, 4) if kind == "R" else value
                of_score = "" if kind == "R" else score
                cells.append(
                    PaperNumber(table, method, where, f"{kind}@{k}", share, score=of_score, role=role)
                )
    return cells


NUMBERS: tuple[PaperNumber, ...] = (
    *_cells(
        "tab:sf_final",
        "R",
        (V1, V2),
        {
            "L2": ((76.0, 83.2, 85.1), (88.5, 94.6, 96.7)),
            "STUN": ((75.6, 84.1, 86.1), (86.8, 93.5, 95.3)),
            "KappaPlace-JT": ((78.9, 85.5, 87.9), (91.3, 95.8, 97.0)),
        },
    ),
    *_cells(
        "tab:sf_final",
        "ECE",
        (V1, V2),
        {
            "L2": ((0.421, 0.493, 0.512), (0.391, 0.453, 0.473)),
            "PA-Score": ((0.641, 0.713, 0.732), (0.742, 0.804, 0.824)),
            "SUE": ((0.207, 0.279, 0.298), (0.275, 0.331, 0.351)),
            "KappaPlace-PT": ((0.093, 0.163, 0.182), (0.172, 0.231, 0.251)),
            "STUN": ((0.288, 0.355, 0.371), (0.350, 0.417, 0.432)),
            "KappaPlace-JT": ((0.097, 0.154, 0.174), (0.220, 0.262, 0.270)),
        },
    ),
    *_cells(
        "tab:ams_msls_final",
        "R",
        (AMSTERTIME, MSLS),
        {
            "L2": ((45.7, 66.0, 72.9), (87.0, 92.0, 94.2)),
            "STUN": ((43.7, 64.7, 71.6), (84.7, 90.9, 92.3)),
            "KappaPlace-JT": ((47.5, 68.0, 74.0), (86.6, 93.0, 94.3)),
        },
    ),
    *_cells(
        "tab:ams_msls_final",
        "ECE",
        (AMSTERTIME, MSLS),
        {
            "L2": ((0.209, 0.412, 0.480), (0.380, 0.430, 0.452)),
            "PA-Score": ((0.374, 0.578, 0.646), (0.716, 0.766, 0.788)),
            "SUE": (None, (0.209, 0.243, 0.264)),
            "KappaPlace-PT": ((0.310, 0.145, 0.108), (0.074, 0.116, 0.138)),
            "STUN": ((0.191, 0.222, 0.257), (0.344, 0.395, 0.409)),
            "KappaPlace-JT": ((0.339, 0.172, 0.133), (0.040, 0.071, 0.076)),
        },
    ),
    *_cells(
        "fig:combined_ece_final",
        "ECE",
        (POOLED,),
        {
            "L2": ((0.492, 0.554, 0.569),),
            "PA-Score": ((0.737, 0.799, 0.814),),
            "SUE": ((0.135, 0.191, 0.204),),
            "STUN": ((0.378, 0.436, 0.450),),
            "KappaPlace-PT": ((0.066, 0.117, 0.129),),
            "KappaPlace-JT": ((0.104, 0.154, 0.165),),
        },
    ),
    *_cells(
        "tab:match_level_selected",
        "match ECE",
        (V1, V2, PITTS, MSLS),
        {
            "L2": (
                (0.421, 0.359, 0.275),
                (0.391, 0.418, 0.392),
                (0.516, 0.482, 0.398),
                (0.380, 0.315, 0.189),
            ),
            "KappaPlace-PT": (
                (0.093, 0.112, 0.243),
                (0.172, 0.133, 0.095),
                (0.191, 0.094, 0.129),
                (0.074, 0.118, 0.292),
            ),
            "KappaPlace-JT": (
                (0.097, 0.078, 0.210),
                (0.220, 0.155, 0.104),
                (0.175, 0.088, 0.146),
                (0.040, 0.187, 0.363),
            ),
        },
    ),
    *_cells(
        "tab:ablations_combined",
        "ECE",
        (POOLED,),
        {
            "GNLL-variant": ((0.230, 0.322, 0.350),),
            "Linear-head": ((0.179, 0.267, 0.295),),
            "KappaPlace-PT (ResNet-18)": ((0.080, 0.172, 0.200),),
        },
    ),
    *(
        PaperNumber(
            "tab:seed_results_vertical",
            "KappaPlace-PT, five seeds (ResNet-18)",
            where,
            f"ECE@{k}",
            value,
            spread,
            "kappaplace",
            "seeds-r18",
        )
        for where, cells in {
            V1: ((0.212, 0.007), (0.112, 0.006), (0.085, 0.007)),
            V2: ((0.157, 0.009), (0.261, 0.009), (0.287, 0.009)),
            POOLED: ((0.079, 0.003), (0.170, 0.004), (0.198, 0.004)),
        }.items()
        for k, (value, spread) in zip(KS, cells, strict=True)
    ),
    *_cells(
        "tab:pitts_appendix",
        "R",
        (PITTS,),
        {
            "L2": ((89.4, 95.3, 96.6),),
            "STUN": ((90.0, 95.2, 96.5),),
            "KappaPlace-JT": ((89.3, 95.2, 96.5),),
        },
    ),
    *_cells(
        "tab:pitts_appendix",
        "ECE",
        (PITTS,),
        {
            "L2": ((0.516, 0.576, 0.588),),
            "PA-Score": ((0.765, 0.825, 0.837),),
            "SUE": ((0.161, 0.215, 0.225),),
            "KappaPlace-PT": ((0.191, 0.247, 0.258),),
            "STUN": ((0.423, 0.475, 0.487),),
            "KappaPlace-JT": ((0.175, 0.230, 0.242),),
        },
    ),
    *_cells(
        "tab:ablations_city_scale",
        "ECE",
        (V1, V2, PITTS),
        {
            "GNLL-variant": ((0.141, 0.082, 0.090), (0.230, 0.330, 0.357), (0.333, 0.409, 0.427)),
            "Linear-head": ((0.197, 0.159, 0.142), (0.220, 0.309, 0.336), (0.330, 0.405, 0.422)),
            "KappaPlace-PT (ResNet-18)": (
                (0.208, 0.106, 0.078),
                (0.160, 0.263, 0.290),
                (0.218, 0.294, 0.312),
            ),
        },
    ),
    *_cells(
        "tab:ablations_environmental",
        "ECE",
        (AMSTERTIME, MSLS),
        {
            "GNLL-variant": ((0.326, 0.157, 0.101), (0.243, 0.307, 0.346)),
            "Linear-head": ((0.272, 0.193, 0.196), (0.248, 0.307, 0.346)),
            "KappaPlace-PT (ResNet-18)": ((0.309, 0.148, 0.105), (0.155, 0.200, 0.238)),
        },
    ),
    *_cells(
        "tab:unc_score_city",
        "ECE",
        (V1, V2, PITTS),
        {
            "KappaPlace-PT 1/κ": ((0.083, 0.131, 0.148), (0.183, 0.239, 0.259), (0.164, 0.214, 0.224)),
            "KappaPlace-PT": ((0.093, 0.163, 0.182), (0.172, 0.231, 0.251), (0.191, 0.247, 0.258)),
            "KappaPlace-JT 1/κ": ((0.092, 0.148, 0.170), (0.161, 0.200, 0.208), (0.172, 0.224, 0.233)),
            "KappaPlace-JT": ((0.097, 0.154, 0.174), (0.220, 0.262, 0.270), (0.175, 0.230, 0.242)),
        },
    ),
    *_cells(
        "tab:unc_score_environmental",
        "ECE",
        (AMSTERTIME, MSLS),
        {
            "KappaPlace-PT 1/κ": ((0.343, 0.186, 0.136), (0.111, 0.150, 0.171)),
            "KappaPlace-PT": ((0.310, 0.145, 0.108), (0.074, 0.116, 0.138)),
            "KappaPlace-JT 1/κ": ((0.366, 0.184, 0.152), (0.056, 0.094, 0.102)),
            "KappaPlace-JT": ((0.339, 0.172, 0.133), (0.040, 0.071, 0.076)),
        },
    ),
    *_cells(
        "tab:l2_cosplace_app",
        "R",
        (V1, V2, AMSTERTIME, MSLS),
        {
            "L2 (114 epochs)": (
                (77.8, 83.7, 85.6),
                (90.0, 95.0, 97.0),
                (46.7, 68.9, 73.8),
                (87.4, 93.9, 94.7),
            ),
            "KappaPlace-JT": (
                (78.9, 85.5, 87.9),
                (91.3, 95.8, 97.0),
                (47.5, 68.0, 74.0),
                (86.6, 93.0, 94.3),
            ),
        },
    ),
    *_cells(
        "tab:sfxl_final",
        "R",
        (V1, V2),
        {
            "STUN epoch 6": ((75.6, 84.1, 86.1), (86.8, 93.5, 95.3)),
            "STUN epoch 11": ((75.6, 83.6, 86.2), (87.0, 93.3, 96.0)),
        },
    ),
    *_cells(
        "tab:sfxl_final",
        "ECE",
        (V1, V2),
        {
            "STUN epoch 6": ((0.288, 0.355, 0.371), (0.350, 0.417, 0.432)),
            "STUN epoch 11": ((0.289, 0.352, 0.372), (0.383, 0.447, 0.470)),
        },
    ),
    *_cells(
        "tab:urban_longterm_final",
        "R",
        (AMSTERTIME, MSLS),
        {
            "STUN epoch 6": ((43.7, 64.7, 71.6), (84.7, 90.9, 92.3)),
            "STUN epoch 11": ((43.6, 64.4, 71.0), (84.7, 90.8, 92.7)),
        },
    ),
    *_cells(
        "tab:urban_longterm_final",
        "ECE",
        (AMSTERTIME, MSLS),
        {
            "STUN epoch 6": ((0.191, 0.222, 0.257), (0.344, 0.395, 0.409)),
            "STUN epoch 11": ((0.183, 0.222, 0.260), (0.357, 0.415, 0.434)),
        },
    ),
)

# What no evaluation of a table can measure: time and memory of one machine.
COST: tuple[PaperNumber, ...] = (
    PaperNumber("tab:efficiency", "Baseline", "", "latency ms", 5.10),
    PaperNumber("tab:efficiency", "KappaPlace", "", "latency ms", 5.44),
    PaperNumber("tab:efficiency", "Baseline", "", "parameters M", 24.56),
    PaperNumber("tab:efficiency", "KappaPlace", "", "parameters M", 25.61),
    PaperNumber("tab:efficiency", "Baseline", "", "peak memory MB", 148.90),
    PaperNumber("tab:efficiency", "KappaPlace", "", "peak memory MB", 161.0),
    PaperNumber("tab:training_times", "CosPlace", "", "training hours", 26),
    PaperNumber("tab:training_times", "STUN", "", "training hours", 73),
    PaperNumber("tab:training_times", "KappaPlace-PT", "", "training hours", 49),
    PaperNumber("tab:training_times", "KappaPlace-JT", "", "training hours", 73),
)
