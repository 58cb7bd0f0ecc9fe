// Have the queries changed since the calibration? Windows of queries against it, and what people said.

import { get } from "./api.js";
import { h, s, WORDS } from "./dom.js";
import { count, number } from "./format.js";
import { empty, loading, problem } from "./states.js";

const WIDE = 300;
const HIGH = 58;

export function driftPage(world) {
  const content = h("div", { class: "reading" }, loading("Reading the last queries…"));
  const fill = async () => {
    try {
      const [drift, labels] = await Promise.all([get("/v1/map/drift"), get("/v1/labels")]);
      content.replaceChildren(...state(drift), people(labels, world), h("button", { type: "button", class: "plain", onclick: fill }, "Refresh"));
    } catch (error) {
      content.replaceChildren(problem(error, fill));
    }
  };
  fill();
  return h("div", { class: "reading" }, h("h1", {}, "Have the queries changed?"), h("p", { class: "lead" }, "Probabilities are valid for queries like those of the calibration. Here, the queries since the start of this service are compared with them."), content);
}

function state(drift) {
  if (!drift.available) return [empty("Nothing to compare with", "The map has no calibration with reference statistics.", "kappaplace calibrate MAP --self")];
  const last = drift.windows[drift.windows.length - 1];
  const left = drift.window - drift.waiting;
  const next = `${count(drift.queries)} queries so far; the next comparison is after ${count(left)} more.`;
  const title = !last ? "Too few queries to compare yet" : drift.drifting ? "The queries have changed" : "The queries are like those of the calibration";
  const words = last?.warnings.length ? last.warnings.map((warning) => h("li", {}, warning.sentence)) : [];
  return [
    h("section", { class: `panel drift ${last ? (drift.drifting ? "reject" : "accept") : "undecided"}` }, h("h2", {}, title), words.length ? h("ul", { class: "promise" }, words) : null, h("p", { class: "muted" }, next)),
    h("div", { class: "plots" }, Object.keys(drift.calibrated).map((name) => signal(name, drift))),
  ];
}

/** Three quantiles of each window, with the band of the calibration behind them. */
function signal(name, { calibrated, windows }) {
  const bands = [calibrated[name], ...windows.map((window) => window.quantiles[name])];
  const [low, high] = [Math.min(...bands.flat()), Math.max(...bands.flat())];
  const y = (value) => 6 + (HIGH - 12) * (1 - (value - low) / Math.max(high - low, 1e-12));
  const words = `${name}: 5% to 95% at calibration is ${bands[0].map(number).filter((_, i) => i !== 1).join(" to ")}`;
  const plot = s("svg", { class: "plot drift-plot", viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": words });
  plot.append(s("rect", { class: "area", x: 0, width: WIDE, y: y(bands[0][2]), height: Math.max(y(bands[0][0]) - y(bands[0][2]), 1) }), s("line", { class: "ideal", x1: 0, x2: WIDE, y1: y(bands[0][1]), y2: y(bands[0][1]) }));
  bands.slice(1).forEach(([bottom, middle, top], i) => {
    const x = ((i + 0.5) * WIDE) / Math.max(windows.length, 6);
    plot.append(s("line", { class: "line", x1: x, x2: x, y1: y(bottom), y2: y(top) }), s("circle", { class: "point", cx: x, cy: y(middle), r: 4 }));
  });
  const now = windows.length ? bands[bands.length - 1] : null;
  return h("section", { class: "panel" }, h("h2", {}, name === "kappa" ? "κ" : name), plot, h("p", { class: "muted small" }, `Shaded: 5% to 95% of the calibration (${number(bands[0][0])} to ${number(bands[0][2])}). ${now ? `Last window: ${number(now[0])} to ${number(now[2])}.` : "Each window of queries becomes one bar."}`));
}

function people({ stored, counts }, world) {
  const rows = Object.entries(counts).map(([decision, n]) => h("tr", {}, [WORDS[decision] ?? decision, ...["right", "wrong", "unknown"].map((key) => count(n[key]))].map((value) => h("td", {}, value))));
  const words = world.labels
    ? `${count(stored)} labels are stored. People choose what they label, so this is not a random sample, and no guarantee follows from it.`
    : "The operator can store them with --labels DIR.";
  return h(
    "section",
    { class: "panel" },
    h("h2", {}, "What people said"),
    rows.length ? h("table", {}, h("thead", {}, h("tr", {}, ["decision", "right", "wrong", "don’t know"].map((word) => h("th", { scope: "col" }, word)))), h("tbody", {}, rows)) : null,
    h("p", { class: "muted small" }, words),
  );
}
