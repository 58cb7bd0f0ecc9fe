// "How reliable is it?": the quality of the calibration of this map.

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
      h("h1", {}, "How reliable is it?"),
      empty(
        "This map is not calibrated",
        "Its scores rank the matches, but it is unknown how often they are correct. Calibrate it with labelled queries, or, without a guarantee, on the map's own images:",
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
    h("h1", {}, "How reliable is it?"),
    h("p", { class: "lead" }, "A probability is useful if it matches the fraction of correct answers. These plots show the quality of the calibration of this map."),
    guarantee(calibration),
    h(
      "div",
      { class: "plots" },
      figure(
        "Does 80% mean 80%?",
        bins.length ? reliability(bins) : null,
        "Each disc is a group of queries; its area is their number. On the dashed line the probabilities are exact; below it the map is overconfident, above it underconfident.",
        numbers("The numbers", ["predicted", "correct", "queries"], bins.filter((b) => b.count > 0).map((b) => [percent(b.probability), percent(b.observed), count(b.count)])),
      ),
      figure(
        "What does caution cost?",
        points.length ? riskCoverage(points, limit) : null,
        "Expected from the calibrated probabilities: if you accept only the most confident answers (left), few of them are incorrect; if you accept all (right), all errors are included.",
        numbers("The numbers", ["coverage", "risk"], sample(points, 20).map((p) => [percent(p.coverage), percent(p.risk)])),
      ),
    ),
  );
}

function guarantee({ guaranteed, origin, promise, notes }) {
  const lines = [origin ? `Calibrated on ${origin}.` : null, ...promise, ...notes].filter(Boolean);
  return h("section", { class: "panel promise" }, h("h2", {}, guaranteed ? "Guarantee" : "Expected results, without a guarantee"), h("ul", {}, [...new Set(lines)].map((line) => h("li", {}, line))));
}

function figure(title, plot, words, table) {
  if (!plot) return h("section", { class: "panel" }, h("h2", {}, title), h("p", { class: "muted" }, "This calibration has no data for this plot."));
  return h("section", { class: "panel" }, h("h2", {}, title), plot, h("p", { class: "muted" }, words), table);
}

const sample = (list, most) => list.filter((_, i) => list.length <= most || i % Math.ceil(list.length / most) === 0 || i === list.length - 1);
