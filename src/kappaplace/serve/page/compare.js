// The photo and a match side by side: whole pictures, matched patches as lines, swipe, and a large view.

import { h, s } from "./dom.js";
import { distance, file, known, metres, number, percent, placed, similarity } from "./format.js";
import { picture } from "./picture.js";

const SWIPE = 45; // pixels

/** `photo` is {url, name, readable}; `move(step)` selects another match. Returns {element, show(match, answer, count)}. */
export function comparison(photo, move, large = null) {
  const left = h("div", { class: "picture whole" }, photo.readable ? h("img", { src: photo.url, alt: `Your photo: ${photo.name}` }) : h("p", { class: "gone" }, "This browser cannot show the photo."));
  const right = h("div", { class: "slot" });
  const lines = s("svg", { class: "patches", "aria-hidden": "true" });
  const pictures = h("div", { class: "pictures" }, left, right, lines);
  const title = h("span", { class: "which-match" });
  const facts = h("dl", { class: "facts" });
  const about = h("details", { class: "about" }, h("summary", {}, "About this match"), facts);
  const step = (words, sign, by) => h("button", { type: "button", class: "step", "aria-label": words, title: words, onclick: () => move(by) }, sign);
  const toggle = h("input", { type: "checkbox", checked: true });
  const patches = h("label", { class: "patch-toggle", hidden: true }, toggle, h("span", {}));
  const element = h(
    "div",
    { class: "compare" },
    pictures,
    h("div", { class: "row between under" }, h("span", { class: "your" }, "Your photo"), h("span", { class: "row steps" }, step("Previous match", "‹", -1), title, step("Next match", "›", 1), large ? h("button", { type: "button", class: "step", "aria-label": "Large view", title: "Large view", onclick: large }, "⤢") : null)),
    patches,
    about,
  );
  let pairs = [];
  const redraw = () => draw(lines, pictures, toggle.checked ? pairs : []);
  toggle.addEventListener("change", redraw);
  new ResizeObserver(redraw).observe(pictures);
  pictures.addEventListener("load", redraw, true);
  onSwipe(pictures, move);
  if (large) pictures.addEventListener("click", large);

  return {
    element,
    show(match, answer, count) {
      right.replaceChildren(picture(match.thumbnail, `Reference ${file(match.name)}`, { class: "picture whole waiting" }));
      title.textContent = `Match ${match.rank} of ${count}`;
      pairs = (match.rank === 1 && answer.evidence) || []; // the service compares patches with the best match
      patches.hidden = !pairs.length;
      patches.lastChild.textContent = `Show the ${pairs.length} patches that match`;
      facts.replaceChildren(...factsOf(match, answer));
      redraw();
    },
  };
}

function factsOf(match, answer) {
  const apart = placed(answer.pose) && placed(match) ? distance(answer.pose, match) : null;
  const rows = [
    ["image", file(match.name)],
    ["probability", percent(match.rank === 1 ? answer.probability : match.probability)],
    ["similarity", similarity(match.similarity)],
    ["κ", number(match.kappa)],
    ["from the estimate", placed(match) ? metres(apart) : "no position"],
  ];
  return rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)));
}

/** Lines between matched patches: x and y in both pictures as fractions of their size, and a weight. */
function draw(lines, pictures, pairs) {
  const [from, to] = pictures.querySelectorAll("img");
  lines.replaceChildren();
  if (!pairs.length || !from?.naturalWidth || !to?.naturalWidth) return;
  const frame = pictures.getBoundingClientRect();
  lines.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
  const [a, b] = [from, to].map((image) => shownBox(image, frame));
  const most = Math.max(...pairs.map((pair) => pair[4]));
  for (const [x, y, u, v, weight] of pairs) {
    const [x1, y1, x2, y2] = [a.x + x * a.width, a.y + y * a.height, b.x + u * b.width, b.y + v * b.height];
    const opacity = (0.25 + (0.75 * weight) / most).toFixed(2);
    lines.append(s("line", { x1, y1, x2, y2, opacity }), s("circle", { cx: x1, cy: y1, r: 3, opacity }), s("circle", { cx: x2, cy: y2, r: 3, opacity }));
  }
}

/** The part of an <img> that its picture fills. */
function shownBox(image, frame) {
  const box = image.getBoundingClientRect();
  const scale = Math.min(box.width / image.naturalWidth, box.height / image.naturalHeight);
  const [width, height] = [image.naturalWidth * scale, image.naturalHeight * scale];
  return { x: box.x - frame.x + (box.width - width) / 2, y: box.y - frame.y + (box.height - height) / 2, width, height };
}

function onSwipe(element, move) {
  let start = null;
  let swiped = false;
  element.addEventListener("pointerdown", (event) => {
    start = event.pointerType === "mouse" ? null : event.clientX;
    swiped = false;
  });
  element.addEventListener("pointerup", (event) => {
    if (start !== null && Math.abs(event.clientX - start) > SWIPE) {
      swiped = true;
      move(event.clientX < start ? 1 : -1);
    }
    start = null;
  });
  // A swipe is not a click, which opens the large view.
  element.addEventListener("click", (event) => swiped && event.stopImmediatePropagation(), true);
}

/** A large view of the same pictures; arrows select other matches. `match()` returns the current {match, answer, count}. */
export function lightbox(photo, match, move) {
  const dialog = h("dialog", { class: "lightbox", "aria-label": "Your photo and a match, large" });
  const paint = () => {
    const now = match();
    view.show(now.match, now.answer, now.count);
  };
  const turn = (by) => {
    move(by);
    paint();
  };
  const view = comparison(photo, turn);
  dialog.append(h("form", { method: "dialog", class: "row end" }, h("button", { class: "plain" }, "Close")), view.element);
  dialog.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) turn(by);
  });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  paint();
}
