// The answer: the place first, then the decision, what to do with it, and its reasons.

import { sendLabel } from "./api.js";
import { badge, h, say } from "./dom.js";
import { known, percent, placed, seconds } from "./format.js";
import { actions, placeOf } from "./place.js";
import { reasons, supports } from "./reasons.js";

const ADVICE = {
  accept: "Use it.",
  doubtful: "Slow down, or use another sensor.",
  reject: "Do not use it.",
  undecided: "This map is not calibrated, so the probability of the best match is unknown.",
};
const QUESTION = { accept: "accepted", doubtful: "doubtful", reject: "rejected" };

/** What is known about the error of the place. */
function precision(answer) {
  const { pose, radius, radius_level: level, radius_source: source } = answer;
  if (!placed(pose)) return "The best match has no position, or it is rejected.";
  const alone = pose.matches > 1 ? `${pose.matches} matches agree` : "position of match 1; no other match agrees";
  if (!known(radius)) return `Error unknown; ${alone}.`;
  const basis = source === "labels" ? "measured on labelled queries" : "an estimate from the map's own images";
  return `${known(level) ? `${percent(level)} of correct answers are this close, ${basis}` : basis}; ${alone}.`;
}

/** `parts` are {compare, name, world}: the pictures, the name of the photo, and the map. */
export function verdict(answer, decision, { compare, name, world }) {
  const frame = answer.frame || world.info.frame;
  const { text, radius } = placeOf(answer, frame);
  const why = decision === "accept" ? [...supports(answer, world), ...reasons(answer, decision, world.habits)] : reasons(answer, decision, world.habits);
  const time = Object.values(answer.seconds ?? {}).filter(known).reduce((sum, part) => sum + part, 0);
  return h(
    "section",
    { class: `panel verdict ${decision}`, "aria-label": "The answer" },
    h(
      "div",
      { class: "head" },
      h("h2", { class: "place" }, h("span", { class: "at" }, text || "No position"), " ", radius ? h("span", { class: "radius" }, radius) : null),
      known(answer.probability) ? h("p", { class: "chance" }, h("span", { class: "big" }, percent(answer.probability)), h("span", { class: "muted small" }, " probability")) : null,
      h("p", { class: "decision" }, badge(decision), h("span", {}, ADVICE[decision])),
    ),
    compare,
    h("p", { class: "muted small where" }, precision(answer)),
    actions(answer, frame, name),
    why.length ? h("div", { class: "why" }, h("h3", {}, QUESTION[decision] ? `Why is it ${QUESTION[decision]}?` : "Possible problems"), h("ul", {}, why.map(({ title, words }) => h("li", {}, h("strong", {}, title), h("span", {}, words))))) : null,
    world.labels && answer.id ? feedback(answer) : null,
    (answer.notes ?? []).length ? h("details", { class: "notes" }, h("summary", {}, "Notes on this answer"), h("ul", {}, answer.notes.map((note) => h("li", {}, note)))) : null,
    time > 0 ? h("p", { class: "muted small" }, `Answered in ${seconds(time)}.`) : null,
  );
}

/** Right, wrong or unknown; kept with the answer, so that repainting does not ask again. */
function feedback(answer) {
  const status = h("p", { class: "muted small", role: "status" });
  const thanks = () => status.replaceChildren("Thank you. This label is stored apart from those for calibration, which need a random sample.");
  const press = (label) => {
    for (const button of row.children) button.setAttribute("aria-pressed", String(button.value === label));
  };
  const send = async (event) => {
    const label = event.currentTarget.value;
    try {
      await sendLabel(answer.id, label);
      answer.label = label;
      press(label);
      thanks();
      say("The label was stored.");
    } catch (error) {
      status.replaceChildren(error.message);
    }
  };
  const words = [["right", "Right"], ["wrong", "Wrong"], ["unknown", "Don’t know"]];
  const row = h("div", { class: "row labels" }, words.map(([value, word]) => h("button", { type: "button", class: "plain", value, "aria-pressed": "false", onclick: send }, word)));
  if (answer.label) {
    press(answer.label);
    thanks();
  }
  return h("div", { class: "feedback" }, h("h3", {}, "Is this place right?"), row, status);
}
