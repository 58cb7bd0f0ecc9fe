"""Captions: how to read each table and figure."""

from kappaplace.metrics import ECE_NOTE

SCORES = (
    "ECE@K compares the fraction of correct queries in ten bins of a score with the fraction that the bins "
    "promise; rescaling a score changes it. AUROC is the probability that a correct match has a higher "
    "confidence than an incorrect one (0.5 is chance). Compare with the last rows: what a constant score and "
    "a perfect ranking get. AURC and AUGRC are the remaining errors, averaged over all fractions of "
    "answered queries. "
    "coverage@10% is the fraction that can be answered with 10% errors, with a threshold chosen on these "
    "queries. Bold is best, small print is the bootstrap interval, and a dash means not defined, such as "
    "AUROC if all matches are correct."
)
RELIABILITY = (
    "Queries are sorted into ten bins from certain to uncertain. A calibrated score follows the dashed "
    "line, which R@1, R@5 and R@10 cannot do at the same time. "
    "Gray bars show the fraction of queries per bin, the numbers below show their count."
)
RISK = (
    "The most confident queries are answered first; the curve shows the fraction of incorrect answers. "
    "Lower is better, and the right end is the error of answering every query. The first 5% are noisy and "
    "may leave the plot."
)
HISTOGRAMS = (
    "A useful score puts correct matches (solid green) left and incorrect ones (dashed red) right. The less "
    "they overlap, the better. The outermost bins contain the last 0.5% of each tail."
)
KAPPA = (
    "κ depends only on the image. If it detects failures, incorrect queries (dashed) are left of correct "
    "ones. If the map images are much clearer than the queries, the dotted line is right of both."
)
BARS = (
    "Shorter is better. Read it together with AUROC, because ECE can change without changing any decision. "
    f"{ECE_NOTE}"
)
SENSITIVITY = (
    "The line is ECE@1 with 1% of the tails clamped, the band is any clamp from 0 to 5%, and the dot is the "
    "paper's choice. The dashed line is zoom binning without a clamp; below 1,000 queries it has no effect. "
    "The wider and steeper the band, the less a single ECE tells you."
)
MAP = (
    "Gray dots are references, colored dots are queries (dark: {score} is uncertain), and red crosses are "
    "incorrect top matches. Crosses on light dots are the dangerous ones."
)
GALLERY = (
    "Each row is a query (gray frame) with its best references: a solid green frame is correct, a dashed "
    "red one is incorrect."
)
CONFIDENCE = " The confidence is 1/U of the pair."
FAILURES = "Incorrect queries, the most confident first: a threshold on this score rejects them last."
COMPARISON = (
    "One plot per score, one line per run. The most confident queries are answered first; the curve shows "
    "the fraction of incorrect answers. The lower line is the better run."
)
COMPARISON_TABLE = (
    "Bold is the best run for each score. AUC-PR, AURC and AUGRC also depend on R@1; AUROC and ECE measure "
    "only the score."
)
