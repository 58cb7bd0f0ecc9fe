// Plots as SVG: a frame with axes in percent, and its content.

import { h, s } from "./dom.js";
import { count, number, percent, quantile, rank } from "./format.js";

const WIDE = 460;
const HIGH = 340;
const ROOM = { left: 66, right: 26, top: 12, bottom: 50 };

/** Four or five round numbers, starting at 0. */
function ticks(most) {
  const step = [0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25].find((size) => most / size <= 5) ?? 0.25;
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, i) => i * step);
}

function frame(title, xName, yName, yMost) {
  const x = (value) => ROOM.left + value * (WIDE - ROOM.left - ROOM.right);
  const y = (value) => HIGH - ROOM.bottom - (value / yMost) * (HIGH - ROOM.top - ROOM.bottom);
  const plot = s("svg", { class: "plot", viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": title });
  for (const part of ticks(1)) {
    plot.append(
      s("line", { class: "grid", x1: x(part), x2: x(part), y1: y(0), y2: y(yMost) }),
      s("text", { class: "tick", x: x(part), y: y(0) + 20, "text-anchor": "middle" }, percent(part)),
    );
  }
  for (const part of ticks(yMost)) {
    plot.append(
      s("line", { class: "grid", x1: x(0), x2: x(1), y1: y(part), y2: y(part) }),
      s("text", { class: "tick", x: x(0) - 8, y: y(part) + 4, "text-anchor": "end" }, percent(part)),
    );
  }
  plot.append(
    s("text", { class: "axis", x: x(0.5), y: HIGH - 6, "text-anchor": "middle" }, xName),
    s("text", { class: "axis", transform: `translate(14 ${y(yMost / 2)}) rotate(-90)`, "text-anchor": "middle" }, yName),
  );
  return { plot, x, y };
}

/** Predicted probability against observed frequency; the area of a disc is the number of queries. */
export function reliability(bins) {
  const used = bins.filter((bin) => bin.count > 0);
  const { plot, x, y } = frame(
    "Reliability: fraction of correct answers for each predicted probability", "predicted probability", "fraction correct", 1,
  );
  plot.append(s("line", { class: "ideal", x1: x(0), y1: y(0), x2: x(1), y2: y(1) }));
  plot.append(s("text", { class: "tick", x: x(0.985), y: y(0.035), "text-anchor": "end" }, "dashed: perfect calibration"));
  const most = Math.max(...used.map((bin) => bin.count), 1);
  plot.append(s("polyline", { class: "line", points: used.map((b) => `${x(b.probability)},${y(b.observed)}`).join(" ") }));
  for (const bin of used) {
    const radius = 3 + 6 * Math.sqrt(bin.count / most);
    plot.append(
      s("circle", { class: "point", cx: x(bin.probability), cy: y(bin.observed), r: radius },
        s("title", {}, `predicted ${percent(bin.probability)}, correct ${percent(bin.observed)} of ${count(bin.count)} queries`)),
    );
  }
  return plot;
}

/** Fraction of incorrect answers among accepted ones, against the fraction of accepted queries. */
export function riskCoverage(points, limit) {
  const most = Math.min(1, Math.max(0.04, limit, ...points.map((p) => p.risk)) * 1.08);
  const { plot, x, y } = frame("Risk and coverage: fraction of incorrect answers among accepted ones", "coverage: fraction of accepted queries", "risk: fraction incorrect", most);
  const line = points.map((p) => `${x(p.coverage)},${y(p.risk)}`).join(" ");
  if (points.length) {
    const [first, last] = [points[0], points[points.length - 1]];
    plot.append(s("polygon", { class: "area", points: `${x(first.coverage)},${y(0)} ${line} ${x(last.coverage)},${y(0)}` }));
  }
  plot.append(s("polyline", { class: "line", points: line }));
  if (limit !== null) {
    const high = y(limit) < 40 ? 16 : -7;
    plot.append(
      s("line", { class: "limit", x1: x(0), x2: x(1), y1: y(limit), y2: y(limit) }),
      s("text", { class: "tick strong", x: x(0) + 6, y: y(limit) + high }, `accepted risk ${percent(limit)}`),
    );
  }
  return plot;
}

/** Histogram of κ over the images of a map, with the value of a query. */
export function kappaStrip(sorted, value) {
  const [low, high] = [Math.log(quantile(sorted, 0.005)), Math.log(quantile(sorted, 0.995))];
  const span = Math.max(high - low, 1e-6);
  const place = (kappa) => Math.min(Math.max((Math.log(kappa) - low) / span, 0), 1);
  const bars = new Array(32).fill(0);
  for (const kappa of sorted) bars[Math.min(31, Math.floor(place(kappa) * 32))] += 1;
  const most = Math.max(...bars);
  const words = `κ ${number(value)}: higher than ${percent(rank(sorted, value))} of this map's images`;
  const plot = s("svg", { class: "strip", viewBox: "0 0 320 62", role: "img", "aria-label": words });
  bars.forEach((bar, i) => {
    const tall = (40 * bar) / most;
    plot.append(s("rect", { class: "bar", x: i * 10 + 1, y: 46 - tall, width: 8, height: Math.max(tall, 1), rx: 1.5 }));
  });
  const at = Math.min(Math.max(place(value) * 320, 6), 314);
  plot.append(
    s("line", { class: "here", x1: at, x2: at, y1: 2, y2: 50 }),
    s("path", { class: "tip", d: `M${at - 6} 58h12l-6-9z` }),
  );
  return plot;
}

/** The same numbers as a table that opens on demand. */
export function numbers(caption, header, rows) {
  const cells = (tag, values) => values.map((value) => h(tag, tag === "th" ? { scope: "col" } : {}, value));
  return h("details", { class: "numbers" }, h("summary", {}, caption), h("div", { class: "scroll" },
    h("table", {}, h("thead", {}, h("tr", {}, cells("th", header))), h("tbody", {}, rows.map((row) => h("tr", {}, cells("td", row)))))));
}
