// "How sure is it?": what the calibration of this map is worth.

import { h } from "./dom.js";
import { count, percent } from "./format.js";
import { numbers, reliability, riskCoverage } from "./plots.js";
import { empty } from "./states.js";

export function surePage(world) {
  const { calibration } = world;
  if (!calibration.calibrated) {
    return h(
      "div",
      { class: "reading" },
      h("h1", {}, "How sure is it?"),
      empty(
        "This map is not calibrated",
        "Its scores rank the matches, but nobody has measured how often they are right. Calibrate it with labelled queries, or, without a guarantee, on the map's own images:",
        "kappaplace calibrate MAP --queries labelled.parquet\nkappaplace calibrate MAP --self",
      ),
    );
  }
  const bins = calibration.reliability ?? [];
  const points = calibration.risk_coverage ?? [];
  const limit = calibration.max_risk;
  return h(
    "div",
    { class: "reading" },
    h("h1", {}, "How sure is it?"),
    h("p", { class: "lead" }, "A probability is worth something if it comes true as often as it says. This is what the calibration of this map is worth."),
    promised(calibration),
    h(
      "div",
      { class: "plots" },
      figure(
        "Does 80 % mean 80 %?",
        bins.length ? reliability(bins) : null,
        "Each disc is a group of queries; its size is how many. On the dashed line probabilities are exactly as honest as they claim; below it the map is too sure of itself, above it too modest.",
        numbers("The numbers", ["stated", "really right", "queries"], bins.filter((b) => b.count > 0).map((b) => [percent(b.probability), percent(b.observed), count(b.count)])),
      ),
      figure(
        "What does caution cost?",
        points.length ? riskCoverage(points, limit) : null,
        "What to expect from the calibrated probabilities: accept only the surest answers (left) and few of them are wrong; accept all (right) and the errors come with them.",
        numbers("The numbers", ["coverage", "risk"], thinned(points, 20).map((p) => [percent(p.coverage), percent(p.risk)])),
      ),
    ),
  );
}

function promised({ guaranteed, origin, promise, notes }) {
  const lines = [origin ? `Calibrated on ${origin}.` : null, ...promise, ...notes].filter(Boolean);
  return h("section", { class: "panel promise" }, h("h2", {}, guaranteed ? "What is promised" : "What is expected, without a promise"), h("ul", {}, [...new Set(lines)].map((line) => h("li", {}, line))));
}

function figure(title, plot, words, table) {
  if (!plot) return h("section", { class: "panel" }, h("h2", {}, title), h("p", { class: "muted" }, "This calibration does not keep what the plot needs."));
  return h("section", { class: "panel" }, h("h2", {}, title), plot, h("p", { class: "muted" }, words), table);
}

const thinned = (list, most) => list.filter((_, i) => list.length <= most || i % Math.ceil(list.length / most) === 0 || i === list.length - 1);
