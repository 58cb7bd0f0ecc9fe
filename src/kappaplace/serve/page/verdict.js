// The answer: decision, place, probability, and the reasons if it is not accepted.

import { h, icon, WORDS } from "./dom.js";
import { known, metres, percent, placed, seconds } from "./format.js";
import { reasons } from "./reasons.js";

const ADVICE = {
  accept: "Use it.",
  doubtful: "Slow down, or use another sensor.",
  reject: "Do not use it.",
  undecided: "This map is not calibrated, so the probability of the best match is unknown.",
};

const coordinate = new Intl.NumberFormat("en-GB", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

/** A single match has no spread. */
const precision = ({ matches, spread }) => (matches > 1 ? `± ${metres(spread)}, from ${matches} matches that agree` : "position of match 1; no other match agrees");

export function verdict(answer, decision, habits) {
  const { pose } = answer;
  const where = placed(pose)
    ? h("p", { class: "where" }, `x ${coordinate.format(pose.x)}, y ${coordinate.format(pose.y)} `, h("span", { class: "muted" }, precision(pose)))
    : h("p", { class: "where" }, "The best match has no position.");
  const why = decision === "accept" ? [] : reasons(answer, decision, habits);
  const time = Object.values(answer.seconds ?? {}).filter(known).reduce((sum, part) => sum + part, 0);
  return h(
    "section",
    { class: `panel verdict ${decision}`, "aria-label": "The answer" },
    h(
      "div",
      { class: "head" },
      h("div", { class: "seal" }, icon(decision)),
      h("div", {}, h("h2", {}, WORDS[decision]), h("p", { class: "muted" }, ADVICE[decision])),
      known(answer.probability) ? h("div", { class: "chance" }, h("span", { class: "big" }, percent(answer.probability)), h("span", { class: "muted small" }, "probability")) : null,
    ),
    where,
    why.length ? h("div", { class: "why" }, h("h3", {}, decision === "undecided" ? "Possible problems" : `Why is it ${decision === "reject" ? "rejected" : "doubtful"}?`), h("ul", {}, why.map(({ title, words }) => h("li", {}, h("strong", {}, title), h("span", {}, words))))) : null,
    (answer.notes ?? []).length ? h("details", { class: "notes" }, h("summary", {}, "Notes on this answer"), h("ul", {}, answer.notes.map((note) => h("li", {}, note)))) : null,
    time > 0 ? h("p", { class: "muted small" }, `Answered in ${seconds(time)}.`) : null,
  );
}
