// Decisions of an answer at a risk limit: the same rules as kappaplace.calibration, so that the slider
// does not send the photo again. tests/serve/test_page.py compares both.

import { distance, known, placed, real } from "./format.js";

const ORDER = ["accept", "doubtful", "reject"];
const worst = (a, b) => ORDER[Math.max(ORDER.indexOf(a), ORDER.indexOf(b))];

/** Decide the best match. `risk` is the answer of /v1/map/risk; without it, the decision of the answer is kept. */
export function decideAnswer(answer, risk) {
  if (!known(answer.probability)) return "undecided";
  if (!risk) return answer.decision ?? "undecided";
  const byProbability = risk.on === "probability";
  // Higher is worse, like an uncertainty.
  const value = byProbability ? -answer.probability : answer.uncertainty;
  const turn = (limit) => (byProbability ? -limit : limit);
  if (value <= turn(real(risk.threshold))) return "accept";
  return value >= turn(real(risk.reject_at)) ? "reject" : "doubtful";
}

/** One decision per match: never better than the answer, and never accept two different places. */
export function decideMatches(answer, risk, radius) {
  const top = decideAnswer(answer, risk);
  const first = answer.matches[0];
  return answer.matches.map((match, i) => {
    if (i === 0) return top;
    if (!risk) return match.decision ?? "undecided";
    if (top === "undecided" || !known(match.probability)) return "undecided";
    const apart = placed(match) && placed(first) && distance(match, first) > 2 * radius;
    const own = apart ? Math.min(match.probability, 1 - answer.probability) : match.probability;
    const least = 1 - risk.max_risk;
    // With high risks the thresholds would cross; then nothing is rejected.
    const most = risk.reject_risk !== null && risk.reject_risk < least ? risk.reject_risk : -Infinity;
    const alone = own >= least ? "accept" : own <= most ? "reject" : "doubtful";
    return worst(alone, top);
  });
}
