// What an accepted risk makes of an answer: the same rules as kappaplace.calibration, so that the slider
// need not ask for the photo to be embedded again. tests/serve/test_page.py compares both.

import { distance, known, placed, real } from "./format.js";

const ORDER = ["accept", "doubtful", "reject"];
const worst = (a, b) => ORDER[Math.max(ORDER.indexOf(a), ORDER.indexOf(b))];

/** Of the best match. `risk` is what /v1/map/risk says; without it, the decision of the answer stands. */
export function decideAnswer(answer, risk) {
  if (!known(answer.probability)) return "undecided";
  if (!risk) return answer.decision ?? "undecided";
  const byProbability = risk.on === "probability";
  // Higher is worse, as for an uncertainty.
  const value = byProbability ? -answer.probability : answer.uncertainty;
  const turn = (limit) => (byProbability ? -limit : limit);
  if (value <= turn(real(risk.threshold))) return "accept";
  return value >= turn(real(risk.reject_at)) ? "reject" : "doubtful";
}

/** One decision a match: never better than the answer, and none for two places at once. */
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
    // Both risks may be so high that the thresholds would cross: then nothing is rejected.
    const most = risk.reject_risk !== null && risk.reject_risk < least ? risk.reject_risk : -Infinity;
    const alone = own >= least ? "accept" : own <= most ? "reject" : "doubtful";
    return worst(alone, top);
  });
}
