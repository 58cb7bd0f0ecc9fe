// The matches as cards, with a frame in the color of the decision.

import { badge, h, WORDS } from "./dom.js";
import { distance, file, known, metres, number, percent, placed, similarity } from "./format.js";
import { picture } from "./picture.js";

const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));

/** Create a card: {element, decide(decision), choose(on)}. */
export function matchCard(match, answer, choose) {
  const from = placed(answer.pose) && placed(match) ? distance(answer.pose, match) : null;
  // The best match has the probability of the answer, which uses more than this pair.
  const probability = match.rank === 1 ? answer.probability : match.probability;
  const sign = h("div", { class: "sign" });
  const button = h("button", { type: "button", class: "choose", onclick: choose, "aria-pressed": "false", "aria-label": `Match ${match.rank}: show it on the map` }, String(match.rank));
  const image = picture(match.thumbnail, `Reference ${file(match.name)}`);
  const element = h(
    "li",
    { class: "card" },
    h("div", { class: "shot" }, image, button),
    sign,
    h("p", { class: "name", title: match.name }, file(match.name)),
    h(
      "dl",
      {},
      fact("probability", percent(probability)),
      fact("similarity", similarity(match.similarity)),
      fact("κ", number(match.kappa)),
      fact("distance", placed(match) ? (known(from) ? metres(from) : "–") : "no position"),
    ),
  );
  return {
    element,
    decide(decision) {
      element.className = `card ${decision}${element.classList.contains("chosen") ? " chosen" : ""}`;
      element.setAttribute("aria-label", `Match ${match.rank}: ${WORDS[decision]}`);
      sign.replaceChildren(badge(decision));
    },
    choose(on) {
      element.classList.toggle("chosen", on);
      button.setAttribute("aria-pressed", String(on));
    },
  };
}
