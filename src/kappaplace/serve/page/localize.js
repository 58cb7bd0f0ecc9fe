// The first view: a photo in, its place and the confidence out.

import { localize } from "./api.js";
import { askingPanel } from "./asking.js";
import { matchCard } from "./cards.js";
import { decideMatches } from "./decisions.js";
import { h, say, WORDS } from "./dom.js";
import { count, distance, known, number, percent, rank } from "./format.js";
import { MapDrawing } from "./map.js";
import { kappaStrip } from "./plots.js";
import { riskSlider } from "./risk.js";
import { empty, loading, problem } from "./states.js";
import { verdict } from "./verdict.js";

const MATCHES = 8;

export function localizePage(world) {
  const query = h("div", { class: "query" });
  const answerSlot = h("div", { class: "answer" });
  const cardSlot = h("div", { class: "matches" });
  let risk = null;
  let shown = null; // {answer, cards}
  let request = null;

  const drawing = new MapDrawing({
    label: `Map of ${count(world.references.length)} references; the matches appear here`,
    tiles: world.tiles,
    frame: world.info.frame,
    radius: world.info.radius,
    pick: (thing) => thing.rank && choose(thing.rank - 1),
  });
  drawing.show(world.references);

  const paint = () => {
    if (!shown) return;
    const { answer, cards } = shown;
    const decisions = decideMatches(answer, risk, world.info.radius);
    cards.forEach((card, i) => card.decide(decisions[i]));
    answerSlot.replaceChildren(verdict(answer, decisions[0], world.habits));
    drawing.mark(
      answer.matches.map((m, i) => ({ ...m, text: String(m.rank), decision: decisions[i], chosen: i === shown.chosen })),
      answer.pose && { ...answer.pose, decision: decisions[0] },
    );
  };

  const choose = (i) => {
    shown.chosen = shown.chosen === i ? null : i;
    shown.cards.forEach((card, at) => card.choose(at === shown.chosen));
    if (shown.chosen !== null) drawing.lookAt([shown.answer.matches[i], shown.answer.pose ?? shown.answer.matches[i]]);
    paint();
    if (shown.chosen !== null) drawing.element.scrollIntoView({ block: "nearest", behavior: "smooth" });
  };

  const show = (answer) => {
    if (!answer.matches.length) {
      answerSlot.replaceChildren(empty("No match", answer.sentence ?? "There is no reference to compare with."));
      return;
    }
    const cards = answer.matches.map((match, i) => matchCard(match, answer, () => choose(i)));
    shown = { answer, cards, chosen: null };
    cardSlot.replaceChildren(h("h2", {}, "Most similar places"), h("ol", { class: "cards" }, cards.map((card) => card.element)));
    query.append(...certainty(answer, world.habits.kappa));
    paint();
    const decision = decideMatches(answer, risk, world.info.radius)[0];
    // If the answer is not accepted, also show the other candidates.
    const [best, ...others] = answer.matches.slice(0, 3);
    const rivals = others.filter((m) => decision !== "accept" || distance(m, best) <= world.info.radius);
    drawing.lookAt([best, ...rivals, answer.pose ?? {}], 110);
    say(`${WORDS[decision]}. ${answer.sentence ?? ""}`);
  };

  const clear = () => {
    shown = null;
    cardSlot.replaceChildren();
    drawing.mark([]);
  };

  const failed = (error, again = null) => {
    clear();
    answerSlot.replaceChildren(problem(error, again));
  };

  const ask = async (image, name) => {
    request?.abort();
    request = new AbortController();
    const { signal } = request;
    clear();
    const url = URL.createObjectURL(image);
    const photo = h("img", { src: url, alt: `Your photo: ${name}` });
    photo.addEventListener("load", () => URL.revokeObjectURL(url), { once: true });
    photo.addEventListener("error", () => photo.replaceWith(h("p", { class: "gone" }, "This browser cannot show the photo.")));
    query.replaceChildren(h("div", { class: "picture" }, photo));
    answerSlot.replaceChildren(loading(`Comparing with ${count(world.info.references)} references…`));
    cardSlot.replaceChildren(h("ol", { class: "cards", "aria-hidden": "true" }, Array.from({ length: 4 }, () => h("li", { class: "card ghost" }))));
    try {
      const busy = (wait) => answerSlot.replaceChildren(loading(`The service is busy. Retrying in ${number(wait)} s…`));
      const answer = await localize(image, name, { k: MATCHES }, { signal, busy });
      if (signal.aborted) return;
      show(answer);
    } catch (error) {
      if (error.name !== "AbortError") failed(error, () => ask(image, name));
    }
  };

  answerSlot.append(welcome(world));
  const slider = riskSlider(world, (changed) => {
    risk = changed;
    paint();
  });
  return h(
    "div",
    { class: "localize" },
    h("h1", { class: "unseen" }, "Where was this photo taken?"),
    h("div", { class: "side" }, askingPanel(world, ask, failed), query, slider),
    h("div", { class: "stage" }, answerSlot, drawing.element, legend(), cardSlot),
  );
}

function welcome(world) {
  return h(
    "section",
    { class: "panel welcome" },
    h("h2", {}, "Where was this photo taken?"),
    h("p", {}, `Upload a photo to find where it was taken, among the ${count(world.info.references)} images of this map. You also see how confident the answer is, and a decision: accept, doubtful or reject.`),
  );
}

const legend = () =>
  h(
    "ul",
    { class: "legend", "aria-label": "Signs on the map" },
    ...[["accept", "accept"], ["doubtful", "doubtful"], ["reject", "reject"], ["estimate", "estimate and its spread"], ["ground", "reference"]].map(
      ([name, words]) => h("li", {}, h("span", { class: `sample ${name}`, "aria-hidden": "true" }), words),
    ),
  );

/** κ of the query, independent of its matches. */
function certainty(answer, sorted) {
  if (!known(answer.kappa)) return [h("p", { class: "muted small" }, "The model of this map has no κ.")];
  const above = percent(rank(sorted, answer.kappa));
  return [
    h("div", { class: "row between" }, h("h2", { class: "small" }, "The photo itself"), h("span", { class: "big" }, `κ ${number(answer.kappa)}`)),
    ...(sorted.length ? [kappaStrip(sorted, answer.kappa), h("p", { class: "muted small" }, `Higher than ${above} of this map's images (the bars).`)] : []),
  ];
}
