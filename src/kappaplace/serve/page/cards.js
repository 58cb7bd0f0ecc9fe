// The matches as cards: a picture, the decision, and the one number that decided.

import { badge, h, WORDS } from "./dom.js";
import { file, known, percent, similarity } from "./format.js";
import { picture } from "./picture.js";

/** Create a card: {element, decide(decision), choose(on)}. */
export function matchCard(match, answer, choose) {
  // The best match has the probability of the answer, which uses more than this pair.
  const probability = match.rank === 1 ? answer.probability : match.probability;
  const [value, words] = known(probability) ? [percent(probability), "probability"] : [similarity(match.similarity), "similarity"];
  const sign = h("div", { class: "sign" });
  const button = h("button", { type: "button", class: "choose", onclick: choose, "aria-pressed": "false", "aria-label": `Match ${match.rank}: compare it and show it on the map` }, String(match.rank));
  const element = h(
    "li",
    { class: "card" },
    h("div", { class: "shot" }, picture(match.thumbnail, `Reference ${file(match.name)}`, { class: "picture whole waiting" }), button),
    h("div", { class: "row between decided" }, sign, h("span", { class: "value", title: words }, value, h("span", { class: "unseen" }, ` ${words}`))),
    h("p", { class: "name", title: match.name }, file(match.name)),
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
