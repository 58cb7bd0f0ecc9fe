// The map colored by uncertainty: where would more images help?

import { setPart, where } from "./address.js";
import { get } from "./api.js";
import { h } from "./dom.js";
import { count, distance, file, known, number, placed, quantile, similarity } from "./format.js";
import { MapDrawing } from "./map.js";
import { degreesOf } from "./place.js";
import { picture } from "./picture.js";
import { empty, loading, problem } from "./states.js";

const WORST = 12;
const LOOKED_AT = 500; // several views of the same place follow each other
const STEPS = 5;
const APART = 1.7; // metres
const MEASURES = {
  kappa: {
    name: "Unclear images",
    words: "κ of each image. Low values mean little information about the place: blur, darkness, occlusion, or a bare wall. Take the image again in better light, or with a wider view.",
    worse: (a, b) => a - b,
    value: (v) => `κ ${number(v)}`,
  },
  distinctiveness: {
    name: "Confusable places",
    words: "How similar each image is to its closest look-alike elsewhere on the map. High values are easily confused; add views that show something unique.",
    worse: (a, b) => b - a,
    value: (v) => `${similarity(v)} to a far image`,
  },
};

export function browsePage(world) {
  const offered = Object.keys(MEASURES).filter((key) => world.references.some((r) => known(r[key])));
  if (!offered.length) return h("div", { class: "reading" }, h("h1", {}, "Where would more images help?"), empty("No uncertainty for single images", "The model of this map has no κ, and its places were not compared with each other.", "kappaplace map compact MAP"));
  const list = h("ol", { class: "worst" });
  const words = h("p", { class: "muted" });
  const key = h("div", { class: "key" });
  let places = [];
  let chosenMeasure = "";

  const drawing = new MapDrawing({
    label: "Map of the references, coloured by uncertainty",
    tiles: world.tiles,
    frame: world.info.frame,
    radius: world.info.radius,
    pick: (thing) => choose(world.references.find((r) => r.id === thing.id) ?? thing),
  });
  const detail = h("div", { class: "detail", "aria-live": "polite" });

  const choose = (reference) => {
    setPart("browse", reference.id);
    detail.replaceChildren(
      h("section", { class: "panel chosen-reference" }, picture(reference.thumbnail, `Reference ${file(reference.name)}`, { class: "picture whole waiting" }), facts(reference, world.info.frame)),
    );
    drawing.mark(marks(reference));
  };
  const marks = (chosen) => places.map((place, i) => ({ ...place, text: String(i + 1), colour: "step-5", chosen: place.id === chosen?.id })).concat(chosen && !places.some((p) => p.id === chosen.id) ? [{ ...chosen, chosen: true }] : []);

  const use = (name) => {
    const measure = MEASURES[name];
    chosenMeasure = name;
    places = [];
    drawing.mark([]);
    const usable = world.references.filter((r) => known(r[name]));
    const sorted = usable.map((r) => r[name]).sort((a, b) => measure.worse(b, a)); // best first
    const limits = Array.from({ length: STEPS - 1 }, (_, i) => quantile(sorted, (i + 1) / STEPS));
    const step = (value) => limits.filter((limit) => measure.worse(value, limit) < 0).length + 1;
    const coloured = usable.map((r) => ({ ...r, ...turned(r), colour: `step-${step(r[name])}`, size: step(r[name]) === STEPS ? 1.6 : 1.2 }));
    // Draw the least confident images on top.
    drawing.show(coloured.sort((a, b) => measure.worse(b[name], a[name])), world.references);
    words.replaceChildren(measure.words);
    key.replaceChildren(
      h("span", {}, "most confident fifth"),
      ...Array.from({ length: STEPS }, (_, i) => h("span", { class: `sample step-${i + 1}`, "aria-hidden": "true" })),
      h("span", {}, "least confident fifth"),
    );
    detail.replaceChildren();
    find(name).catch((error) => list.replaceChildren(h("li", {}, problem(error, () => use(name)))));
  };

  // The drawing may show a part of a large map; the service searches all of it for the worst images.
  const find = async (name) => {
    list.replaceChildren(h("li", {}, loading("Searching for the least confident places…")));
    const { references } = await get("/v1/map/references", { order: name, limit: LOOKED_AT });
    if (name !== chosenMeasure) return;
    places = apart(references.filter((r) => known(r[name])), world.info.radius);
    const show = (place) => () => {
      choose(place);
      drawing.lookAt([place], 160);
    };
    list.replaceChildren(...places.map((place, i) => row(place, i, MEASURES[name], name, show(place))));
    drawing.mark(marks(null));
  };

  const option = (name, i) =>
    h("label", { class: "option" }, h("input", { type: "radio", name: "measure", value: name, checked: i === 0, onchange: () => use(name) }), h("span", {}, MEASURES[name].name));
  use(offered[0]);
  // A reference in the URL, which may not be among those that are drawn.
  const open = async () => {
    const [view, id] = where();
    if (view !== "browse" || !/^\d+$/.test(id ?? "")) return;
    const reference = world.references.find((r) => r.id === Number(id)) ?? (await get(`/v1/references/${id}`).catch(() => null));
    if (!reference) return;
    choose(reference);
    drawing.lookAt([reference], 160);
  };
  addEventListener("hashchange", open);
  open();
  return h(
    "div",
    { class: "browse" },
    h("h1", {}, "Where would more images help?"),
    h("fieldset", { class: "options" }, h("legend", { class: "unseen" }, "Coloured by"), offered.map(option)),
    words,
    h("div", { class: "browse-map" }, drawing.element, key, h("p", { class: "muted small" }, "Each dot is an image of the map. Closer, a short line shows where the camera looked. Large dots are the least confident fifth; numbers belong to the list."), detail),
    h("section", { class: "browse-list" }, h("h2", {}, "Start here"), list),
  );
}

/** Move views of the same spot apart, each in the direction of its heading. */
function turned({ x, y, heading }) {
  if (!known(heading)) return { x, y };
  const turn = (heading * Math.PI) / 180;
  return { x: x + APART * Math.sin(turn), y: y + APART * Math.cos(turn) };
}

/** Return the worst images, one per place. */
function apart(sorted, radius) {
  const worst = [];
  for (const reference of sorted) {
    if (worst.length === WORST) break;
    if (worst.every((other) => !placed(other) || !placed(reference) || distance(other, reference) > radius)) worst.push(reference);
  }
  return worst;
}

function row(place, i, measure, key, choose) {
  return h(
    "li",
    {},
    h(
      "button",
      { type: "button", onclick: choose },
      h("span", { class: "order" }, String(i + 1)),
      picture(place.thumbnail, ""),
      h("span", { class: "what" }, h("span", { class: "name", title: place.name }, file(place.name)), h("span", { class: "muted small" }, measure.value(place[key]))),
    ),
  );
}

const facts = (r, frame) =>
  h(
    "dl",
    {},
    ...[["image", file(r.name)], ["κ", number(r.kappa)], ["most similar far image", similarity(r.distinctiveness)], ["looks", known(r.heading) ? `${number(r.heading)}° from north` : "unknown"], ["position", positionOf(r, frame)]].map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );

function positionOf(r, frame) {
  const degrees = degreesOf({ latitude: r.lat, longitude: r.lon }, r, frame);
  if (degrees) return degrees.map((value) => value.toFixed(5)).join(", ");
  return placed(r) ? `x ${count(r.x)}, y ${count(r.y)}` : "unknown";
}
