// A vector drawing of a map: its references, the matches of an answer, and the estimate.

import { h } from "./dom.js";
import { distance, metres, placed } from "./format.js";
import { listen } from "./gestures.js";
import { attribution, drawTiles, utmZone } from "./tiles.js";
import { boundsOf, scaleBar, View } from "./view.js";

const LOOKS = 2; // pixels per metre from which the direction of each image is drawn
const REACH = 11; // length of that line in pixels
const NEAR = 14; // largest distance in pixels between a click and a marker
const STREET = 0.24; // half the width of a street, as a fraction of the map's radius

export class MapDrawing {
  /** `label` describes the drawing; `pick(thing)` receives the marker or reference that was clicked. */
  constructor({ label, tiles = null, frame = "", radius = 25, pick = () => {} }) {
    this.view = new View();
    this.references = [];
    this.streets = [];
    this.markers = [];
    this.estimate = null;
    this.tiles = tiles && utmZone(frame) ? { ...tiles, frame } : null;
    this.radius = radius;
    this.pick = pick;
    this.canvas = h("canvas", { tabindex: "0", role: "application", "aria-roledescription": "map", "aria-label": label });
    const key = (name, words, act) =>
      h("button", { type: "button", class: "mapkey", "aria-label": words, title: words, onclick: () => { act(); this.redraw(); } }, name);
    this.element = h(
      "div",
      { class: "map" },
      this.canvas,
      h(
        "div",
        { class: "mapkeys" },
        key("+", "Zoom in", () => this.view.zoom(1.6)),
        key("−", "Zoom out", () => this.view.zoom(1 / 1.6)),
        key("⤢", "Whole map", () => this.home()),
      ),
      h("p", { class: "nowhere" }, "The references of this map have no positions, so there is nothing to draw."),
      h("p", { class: "maphint" }, "Drag to move. Click the map, then use the wheel or + and − to zoom, arrow keys to move, 0 to show all."),
      this.tiles?.attribution ? attribution(this.tiles.attribution) : null,
    );
    listen(this.canvas, this.view, { redraw: () => this.redraw(), pick: (x, y) => this.clicked(x, y), home: () => this.home() });
    new ResizeObserver(() => this.resize()).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
  }

  /** `references` are {x, y} with an optional colour and size, drawn in this order; `route` is their original order. */
  show(references, route = references) {
    this.references = references.filter(placed);
    this.streets = streets(route.filter(placed), this.radius);
    this.element.classList.toggle("blank", !this.references.length);
    this.home();
    this.redraw();
  }

  mark(markers, estimate = null) {
    this.markers = markers.filter(placed);
    this.estimate = placed(estimate) ? estimate : null;
    this.redraw();
  }

  home() {
    const all = boundsOf([...this.references, ...this.markers]);
    if (all) this.view.fit(all);
  }

  /** Show some things with their surroundings. */
  lookAt(things, least = 120) {
    this.wanted = this.view.width > 1 ? null : [things, least]; // again when the drawing has a size
    const box = boundsOf(things.filter(placed));
    if (!box) return;
    const [x, y] = [(box.west + box.east) / 2, (box.south + box.north) / 2];
    const half = [Math.max(box.east - box.west, least) / 2, Math.max(box.north - box.south, least) / 2];
    this.view.fit({ west: x - half[0], east: x + half[0], south: y - half[1], north: y + half[1] });
    this.view.moved = true;
    const all = boundsOf([...this.references, ...things.filter(placed)]);
    if (all) this.view.keepInside(all);
    this.redraw();
  }

  resize() {
    const ratio = devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !height) return;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.view.resize(width, height);
    if (this.wanted) this.lookAt(...this.wanted);
    this.redraw();
  }

  clicked(px, py) {
    const close = (thing) => {
      const [x, y] = this.view.toScreen(thing.x, thing.y);
      return Math.hypot(x - px, y - py);
    };
    for (const things of [this.markers, this.references]) {
      let [best, least] = [null, NEAR];
      for (const thing of things) {
        const gap = close(thing);
        if (gap < least) [best, least] = [thing, gap];
      }
      if (best) return this.pick(best);
    }
  }

  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  draw() {
    const ratio = devicePixelRatio || 1;
    const pen = this.canvas.getContext("2d");
    const css = getComputedStyle(this.canvas);
    const colour = (name) => css.getPropertyValue(`--${name}`).trim() || name;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, this.view.width, this.view.height);
    if (this.tiles) drawTiles(pen, this.view, { ...this.tiles, shown: Number(colour("tiles")) }, ratio, () => this.redraw());
    this.drawReferences(pen, colour);
    if (this.estimate) this.drawEstimate(pen, colour);
    // The best match last, so that it is on top.
    for (const marker of [...this.markers].reverse()) this.drawMarker(pen, marker, colour);
    this.drawScale(pen, colour);
    // Tests and screen readers read here what the drawing shows.
    this.canvas.dataset.markers = this.markers.map((m) => m.decision ?? "place").join(" ");
    this.canvas.dataset.directions = this.directions;
    this.canvas.dataset.scale = this.view.scale.toPrecision(6);
    this.canvas.dataset.centre = `${this.view.x.toFixed(2)} ${this.view.y.toFixed(2)}`;
  }

  drawReferences(pen, colour) {
    const { view } = this;
    const radius = Math.min(Math.max(1.6, 0.9 * view.scale), 4.5);
    const ground = colour("ground");
    if (!this.tiles) this.drawStreets(pen, colour("street"));
    this.directions = 0;
    const looks = view.scale > LOOKS; // closer, there is room for the direction of each camera
    for (const reference of this.references) {
      const [x, y] = view.toScreen(reference.x, reference.y);
      if (x < -9 || y < -9 || x > view.width + 9 || y > view.height + 9) continue;
      const ink = reference.colour ? colour(reference.colour) : ground;
      if (looks && Number.isFinite(reference.heading) && reference.heading !== null) {
        const turn = ((reference.heading - 90) * Math.PI) / 180;
        pen.strokeStyle = ink;
        pen.lineWidth = 2;
        this.directions += 1;
        pen.beginPath();
        pen.moveTo(x, y);
        pen.lineTo(x + REACH * Math.cos(turn), y + REACH * Math.sin(turn));
        pen.stroke();
      }
      pen.strokeStyle = colour("surface");
      pen.lineWidth = 1.5;
      pen.fillStyle = ink;
      pen.beginPath();
      pen.arc(x, y, radius * (reference.size ?? 1), 0, 7);
      pen.fill();
      if (this.tiles) pen.stroke(); // a rim, because the colour of the tiles is unknown
    }
  }

  /** Draw a wide trace along the references, because photos are mostly taken along streets. */
  drawStreets(pen, colour) {
    pen.strokeStyle = colour;
    pen.lineWidth = Math.max(2 * STREET * this.radius * this.view.scale, 6);
    pen.lineCap = pen.lineJoin = "round";
    pen.beginPath();
    for (const [from, to] of this.streets) {
      pen.moveTo(...this.view.toScreen(from.x, from.y));
      pen.lineTo(...this.view.toScreen(to.x, to.y));
    }
    pen.stroke();
  }

  drawEstimate(pen, colour) {
    const { x: east, y: north, spread, heading, decision } = this.estimate;
    const [x, y] = this.view.toScreen(east, north);
    const main = colour(decision);
    const around = Math.max((spread ?? 0) * this.view.scale, 13);
    if (Number.isFinite(heading) && heading !== null) {
      const turn = ((heading - 90) * Math.PI) / 180;
      const reach = around + 34;
      const cone = pen.createRadialGradient(x, y, 4, x, y, reach);
      cone.addColorStop(0, main);
      cone.addColorStop(1, "transparent");
      pen.globalAlpha = 0.45;
      pen.fillStyle = cone;
      pen.beginPath();
      pen.moveTo(x, y);
      pen.arc(x, y, reach, turn - 0.5, turn + 0.5);
      pen.fill();
    }
    pen.globalAlpha = 0.18;
    pen.fillStyle = main;
    pen.beginPath();
    pen.arc(x, y, around, 0, 7);
    pen.fill();
    pen.globalAlpha = 1;
    pen.strokeStyle = main;
    pen.lineWidth = 2;
    pen.setLineDash(decision === "accept" ? [] : [5, 4]);
    pen.stroke();
    pen.setLineDash([]);
    cross(pen, x, y, 9, colour("surface"), 5);
    cross(pen, x, y, 9, colour("ink"), 2.2);
  }

  drawMarker(pen, marker, colour) {
    const [x, y] = this.view.toScreen(marker.x, marker.y);
    const size = (marker.chosen ? 13 : marker.rank > 1 ? 9.5 : 11.5) - (marker.text ? 0 : 3);
    pen.lineWidth = 2;
    pen.strokeStyle = colour("surface");
    pen.fillStyle = colour(marker.decision ?? marker.colour ?? "accent");
    outline(pen, marker.decision, x, y, size);
    pen.fill();
    pen.stroke();
    if (marker.chosen) {
      pen.strokeStyle = colour("ink");
      outline(pen, marker.decision, x, y, size + 3);
      pen.stroke();
    }
    if (!marker.text) return;
    pen.fillStyle = colour("on-decision");
    pen.font = "650 11.5px system-ui, sans-serif";
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText(marker.text, x, y + (marker.decision === "doubtful" ? 2 : 0.5));
  }

  drawScale(pen, colour) {
    const { metres: length, pixels } = scaleBar(this.view.scale);
    const [x, y] = [14, this.view.height - 16];
    pen.font = "12px system-ui, sans-serif";
    pen.textAlign = "left";
    pen.textBaseline = "alphabetic";
    for (const [width, name] of [[5, "surface"], [2, "muted"]]) {
      pen.strokeStyle = colour(name);
      pen.lineWidth = width;
      pen.beginPath();
      pen.moveTo(x, y - 5);
      pen.lineTo(x, y);
      pen.lineTo(x + pixels, y);
      pen.lineTo(x + pixels, y - 5);
      pen.stroke();
    }
    const words = length < 1 ? `${Math.round(length * 100)} cm` : metres(length).replace(".0", "");
    pen.lineWidth = 4;
    pen.strokeStyle = colour("surface");
    pen.strokeText(words, x + 4, y - 8);
    pen.fillStyle = colour("muted");
    pen.fillText(words, x + 4, y - 8);
  }
}

/** Pairs of consecutive references that are close enough to be on the same street. */
function streets(route, radius) {
  const spots = route.filter((r, i) => i === 0 || distance(r, route[i - 1]) > 0.01);
  return spots.map((spot, i) => [spot, i > 0 && distance(spot, spots[i - 1]) <= radius ? spots[i - 1] : spot]);
}

function cross(pen, x, y, size, colour, width) {
  pen.strokeStyle = colour;
  pen.lineWidth = width;
  pen.beginPath();
  pen.moveTo(x - size, y);
  pen.lineTo(x + size, y);
  pen.moveTo(x, y - size);
  pen.lineTo(x, y + size);
  pen.stroke();
}

/** A shape per decision, for people who cannot distinguish colours: disc, triangle, square. */
function outline(pen, decision, x, y, size) {
  pen.beginPath();
  if (decision === "doubtful") {
    pen.moveTo(x, y - size * 1.25);
    pen.lineTo(x + size * 1.2, y + size * 0.85);
    pen.lineTo(x - size * 1.2, y + size * 0.85);
    pen.closePath();
  } else if (decision === "reject") {
    pen.rect(x - size * 0.9, y - size * 0.9, size * 1.8, size * 1.8);
  } else {
    pen.arc(x, y, size, 0, 7);
  }
}

/** What the signs of the map mean. */
export const legend = () =>
  h(
    "ul",
    { class: "legend", "aria-label": "Signs on the map" },
    [["accept", "accepted match"], ["doubtful", "doubtful match"], ["reject", "rejected match"], ["estimate", "your photo, its error and direction"], ["ground", "image of the map; closer, a line shows where it looks"], ["street", "between images"]].map(([name, words]) =>
      h("li", {}, h("span", { class: `sample ${name}`, "aria-hidden": "true" }), words),
    ),
  );
