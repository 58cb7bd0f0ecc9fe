// The first view: photos in, their places and the confidence out.

import { localize } from "./api.js";
import { askingPanel } from "./asking.js";
import { matchCard } from "./cards.js";
import { comparison, lightbox } from "./compare.js";
import { decideAnswer, decideMatches } from "./decisions.js";
import { h, say, WORDS } from "./dom.js";
import { count, distance, known, number, percent, placed, rank } from "./format.js";
import { legend, MapDrawing } from "./map.js";
import { forget, keep, kept, photoOf } from "./photos.js";
import { kappaStrip } from "./plots.js";
import { riskSlider } from "./risk.js";
import { empty, problem, progress } from "./states.js";
import { filmstrip } from "./strip.js";
import { verdict } from "./verdict.js";

const MATCHES = 8;
const TOGETHER = 4; // photos per request, so that the first answers arrive early

export function localizePage(world) {
  const query = h("div", { class: "query" });
  const answerSlot = h("div", { class: "answer" });
  const cardSlot = h("div", { class: "matches" });
  let items = []; // {photo, answer, error} per photo
  let at = 0; // the photo that is shown
  let risk = null;
  let shown = null; // {answer, cards, compare, chosen}
  let request = null;

  const drawing = new MapDrawing({
    label: `Map of ${count(world.references.length)} references; the matches appear here`,
    tiles: world.tiles,
    frame: world.info.frame,
    radius: world.info.radius,
    pick: (thing) => thing.rank && choose(thing.rank - 1),
  });
  drawing.show(world.references);
  const strip = filmstrip((i) => display(i));
  const decisionOf = (answer) => (answer.matches.length ? decideAnswer(answer, risk) : "undecided");

  const paint = () => {
    strip.paint(items, at, decisionOf);
    if (!shown) return;
    const { answer, cards, compare, name } = shown;
    const decisions = decideMatches(answer, risk, world.info.radius);
    cards.forEach((card, i) => card.decide(decisions[i]));
    answerSlot.replaceChildren(verdict(answer, decisions[0], { compare: compare.element, name, world }));
    drawing.mark(
      answer.matches.map((m, i) => ({ ...m, text: String(m.rank), decision: decisions[i], chosen: i === shown.chosen })),
      answer.pose && { ...answer.pose, spread: answer.radius ?? 0, decision: decisions[0] },
    );
  };

  const compared = () => ({ match: shown.answer.matches[shown.chosen ?? 0], answer: shown.answer, count: shown.answer.matches.length });
  const mark = (i) => {
    shown.chosen = i;
    shown.cards.forEach((card, place) => card.choose(place === i));
    const { match, answer, count } = compared();
    shown.compare.show(match, answer, count);
    paint();
  };
  const choose = (i) => {
    mark(shown.chosen === i ? null : i);
    if (shown.chosen !== null) drawing.lookAt([shown.answer.matches[i], ...around(shown.answer)]);
  };
  const turn = (by) => mark(((shown.chosen ?? 0) + by + shown.cards.length) % shown.cards.length);

  const show = ({ photo, answer }) => {
    if (!answer.matches.length) {
      answerSlot.replaceChildren(empty("No match", answer.sentence ?? "There is no reference to compare with."));
      return;
    }
    const cards = answer.matches.map((match, i) => matchCard(match, answer, () => choose(i)));
    const compare = comparison(photo, turn, () => lightbox(photo, compared, turn));
    shown = { answer, cards, compare, name: photo.name, chosen: null };
    compare.show(answer.matches[0], answer, answer.matches.length);
    cardSlot.replaceChildren(h("h2", {}, "Most similar places"), h("ol", { class: "cards" }, cards.map((card) => card.element)));
    query.replaceChildren(...certainty(answer, world.habits.kappa));
    paint();
    const decision = decisionOf(answer);
    // If the answer is not accepted, also show the other candidates.
    const [best, ...others] = answer.matches.slice(0, 3);
    const rivals = others.filter((m) => decision !== "accept" || distance(m, best) <= world.info.radius);
    drawing.lookAt([best, ...rivals, ...around(answer)], 110);
    say(`${WORDS[decision]}. ${answer.sentence ?? ""}`);
  };

  const clear = () => {
    shown = null;
    query.replaceChildren();
    cardSlot.replaceChildren();
    drawing.mark([]);
  };

  const display = (i) => {
    at = i;
    clear();
    const { answer, error } = items[i];
    if (answer) show(items[i]);
    else if (error) answerSlot.replaceChildren(problem(plain(error, items[i].photo), error.again ? () => send([items[i]]) : null));
    paint();
  };

  const failed = (error) => {
    items = [];
    clear();
    strip.paint(items, 0, decisionOf);
    panel.chip(false);
    answerSlot.replaceChildren(problem(error));
  };

  /** Photos {blob, name} of the user: the earlier ones are cleared. */
  const ask = async (files) => {
    request?.abort();
    const mine = new AbortController();
    request = mine;
    for (const { photo } of items) URL.revokeObjectURL(photo.url);
    items = [];
    at = 0;
    clear();
    forget();
    panel.chip(true);
    answerSlot.replaceChildren(progress(files.length > 1 ? `Preparing ${files.length} photos…` : "Preparing the photo…", 0));
    const ready = [];
    for (const { blob, name } of files) {
      const photo = await photoOf(blob, name);
      if (mine.signal.aborted) return;
      const wrong = blob.type && !blob.type.startsWith("image/") ? notAPhoto() : null;
      ready.push({ photo, answer: null, error: wrong });
    }
    items = ready;
    await send(items.filter((item) => !item.error), mine);
  };

  const send = async (waiting, mine = new AbortController()) => {
    request = mine;
    for (const item of waiting) item.error = null;
    let open = false; // whether an answer is shown already
    const first = items.findIndex((item) => item.error);
    if (!waiting.length && first >= 0) return display(first);
    for (let start = 0; start < waiting.length; start += TOGETHER) {
      const group = waiting.slice(start, start + TOGETHER);
      const stop = () => {
        mine.abort();
        for (const item of waiting) if (!item.answer) item.error = Object.assign(new Error("Canceled."), { again: true });
        display(Math.max(0, items.indexOf(group[0])));
      };
      const state = progress("Sending…", 0, stop, group[0].photo);
      if (!open) answerSlot.replaceChildren(state);
      strip.paint(items, at, decisionOf);
      const words = `Comparing with ${count(world.info.references)} references…`;
      const watch = {
        signal: mine.signal,
        busy: (wait) => state.set(`The service is busy. Retrying in ${number(wait)} s…`, null),
        progress: (part) => (part < 1 ? state.set(`Sending… ${percent(part)}`, part) : state.set(words, null)),
      };
      try {
        const results = await localize(group.map(({ photo }) => photo), { k: MATCHES, evidence: true }, watch);
        if (mine.signal.aborted) return;
        results.forEach((result, i) => Object.assign(group[i], result));
      } catch (error) {
        if (error.name === "AbortError") return;
        for (const item of group) item.error = error;
      }
      if (!open) {
        open = true;
        display(Math.max(0, items.indexOf(group[0])));
        bringIntoView(answerSlot);
      } else paint();
    }
    await keep(world.name, world.info.version, items, at);
  };

  const panel = askingPanel(world, ask, failed);
  const slider = riskSlider(world, (changed) => {
    risk = changed;
    paint();
  });
  answerSlot.append(welcome(world));
  const earlier = kept(world.name, world.info.version);
  if (earlier) {
    items = earlier.items;
    panel.chip(true);
    display(earlier.shown);
  }
  return h(
    "div",
    { class: "localize" },
    h("h1", { class: "unseen" }, "Where was this photo taken?"),
    h("div", { class: "side" }, panel.element, query, slider),
    h("div", { class: "stage" }, strip.element, answerSlot, drawing.element, legend(), cardSlot),
  );
}

/** Corners of the square around the estimate and its error. */
function around({ pose, radius }) {
  if (!placed(pose)) return [];
  return [-1, 1].map((side) => ({ x: pose.x + side * (radius ?? 0), y: pose.y + side * (radius ?? 0) }));
}

const notAPhoto = () => Object.assign(new Error("This file is not a photo. Choose a JPEG, PNG or WebP image."), { again: false });

/** The error in the words of the user; the service describes files, which people do not see. */
const plain = (error, photo) => (error.code === "invalid_image" && !photo.readable ? notAPhoto() : error);

/** On small or magnified screens the answer begins below the window. */
function bringIntoView(element) {
  const { top } = element.getBoundingClientRect();
  if (top > 0.4 * innerHeight || top < 0) element.scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
}

function welcome(world) {
  return h(
    "section",
    { class: "panel welcome" },
    h("h2", {}, "Where was this photo taken?"),
    h("p", {}, `Upload a photo to find where it was taken, among the ${count(world.info.references)} images of this map. You also see how confident the answer is, and a decision: accept, doubtful or reject.`),
  );
}

/** κ of the query, independent of its matches. */
function certainty(answer, sorted) {
  if (!known(answer.kappa)) return [h("p", { class: "muted small" }, "The model of this map has no κ.")];
  const above = percent(rank(sorted, answer.kappa));
  return [
    h("div", { class: "row between" }, h("h2", { class: "small" }, "The photo itself"), h("span", { class: "big" }, `κ ${number(answer.kappa)}`)),
    ...(sorted.length ? [kappaStrip(sorted, answer.kappa), h("p", { class: "muted small" }, `Higher than ${above} of this map's images (the bars).`)] : []),
  ];
}
