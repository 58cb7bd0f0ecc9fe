"""How to read each table and figure, in a sentence or two."""

SCORES = (
    "ECE@K compares the success in ten bins of a score with what the bins promise; a mere re-scaling of "
    "the score moves it. AUROC is the chance that a right query looks surer than a wrong one (.5 is "
    "guessing). AUC-PR is read against the last line: a score without knowledge gets R@1. AURC and AUGRC "
    "are the errors left, averaged over all shares of answered queries. coverage@10% is the share that "
    "can be answered with one error in ten, chosen on these very queries. Bold is best; small print is "
    "the bootstrap interval; a dash means not defined, as AUROC when all are right."
)
RELIABILITY = (
    "Queries are sorted into ten bins from certain to uncertain: a calibrated score follows the dashed "
    "line; grey bars are the share of queries in a bin, and their number stands below."
)
RISK = (
    "Answer the surest queries first and read how many answers are wrong: lower is better, and the right "
    "end is the error of answering always. The first twentieth is mostly noise and may leave the plot."
)
HISTOGRAMS = (
    "A useful score puts right matches (solid green) left and wrong ones (dashed red) right; the less the "
    "two overlap, the better. The outermost bins hold the last half percent of either tail."
)
KAPPA = (
    "κ is what the model says of the image alone: if it knows about failures, wrong queries (dashed) lie "
    "left of right ones; if the map is much clearer than the queries, the dotted line lies right of both."
)
BARS = (
    "Shorter is better; read it together with AUROC, because ECE can be moved without changing any decision."
)
SENSITIVITY = (
    "The line is ECE@1 with 1 % of the tails clamped, the band is any clamp from 0 to 5 %; the dot is the "
    "paper's choice. The dashed line is zoom binning without a clamp; below 1,000 queries it never acts. The "
    "wider and steeper, the less a single ECE says."
)
MAP = (
    "Grey dots are references, coloured dots queries (dark: {score} is unsure), red crosses wrong top "
    "matches: crosses on light dots are the dangerous ones."
)
GALLERY = (
    "Each line is a query (grey frame) with its best references: a solid green frame is right, a dashed "
    "red one wrong."
)
CONFIDENCE = " The confidence is 1/U of the pair, so more is surer."
FAILURES = "Wrong queries, the one that looks surest first: a threshold on this score refuses them last."
COMPARISON = (
    "One plot a score, one line a run: answer the surest queries first and read how many answers are "
    "wrong; the lower line is the better run."
)
COMPARISON_TABLE = (
    "Bold is the better run of each score. AUC-PR, AURC and AUGRC also rise and fall with R@1; AUROC and "
    "ECE judge the score alone."
)
