// The slider for the risk limit: the fraction of accepted answers that may be incorrect.

import { parameter, setParameter } from "./address.js";
import { get } from "./api.js";
import { h } from "./dom.js";
import { percent } from "./format.js";

const RISKS = [0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5];
const USUAL = 0.05;
const REST = 150; // milliseconds without movement before the service is called

/** The steps of the slider; the guaranteed risk of the calibration is always one of them. */
const stepsWith = (own) => [...new Set([...RISKS, own])].sort((a, b) => a - b);

/** `changed(risk)` receives the answer of /v1/map/risk; it is not called for a map without calibration. */
export function riskSlider(world, changed) {
  if (!world.calibration.calibrated) {
    return h(
      "section",
      { class: "panel risk" },
      h("h2", {}, "Accepted risk"),
      h("p", {}, "This map is not calibrated. Matches are ranked, but it is unknown how often they are correct, so nothing is accepted or rejected."),
      h("pre", {}, h("code", {}, "kappaplace calibrate MAP --self")),
    );
  }
  const own = world.calibration.max_risk ?? USUAL;
  const steps = stepsWith(own);
  const start = steps.includes(Number(parameter("risk"))) ? Number(parameter("risk")) : own;
  const chosen = h("output", { class: "big", for: "risk" });
  const coverage = h("p", { class: "coverage", "aria-live": "polite" });
  const basis = h("p", { class: "muted small" });
  const bar = h("div", { class: "fill" });
  const slider = h("input", { id: "risk", type: "range", min: 0, max: steps.length - 1, step: 1, value: steps.indexOf(start), "aria-describedby": "risk-help" });
  let timer = 0;
  let request = null;

  const read = async () => {
    request?.abort();
    request = new AbortController();
    try {
      show(await get("/v1/map/risk", { max_risk: steps[slider.value] }, request.signal));
    } catch (error) {
      if (error.name === "AbortError") return;
      bar.style.width = 0;
      coverage.replaceChildren("Could not load the expected results. The colours still show the previous risk.");
      basis.replaceChildren(error.message);
    }
  };

  const show = (risk) => {
    bar.style.width = `${100 * (risk.coverage ?? 0)}%`;
    coverage.replaceChildren(...expected(risk.coverage));
    basis.replaceChildren(risk.guaranteed ? "Guaranteed by labelled queries of this map." : "An estimate from the calibration, not a guarantee.");
    changed(risk);
  };

  const moved = () => {
    const words = percent(steps[slider.value]);
    chosen.replaceChildren(words);
    slider.setAttribute("aria-valuetext", `${words} of the accepted answers may be incorrect`);
    clearTimeout(timer);
    timer = setTimeout(read, REST);
  };

  slider.addEventListener("input", () => {
    setParameter("risk", steps[slider.value] === own ? null : steps[slider.value]);
    moved();
  });
  moved();
  return h(
    "section",
    { class: "panel risk" },
    h("div", { class: "row between" }, h("label", { for: "risk" }, h("h2", {}, "Accepted risk")), chosen),
    slider,
    h("div", { class: "row between ends", "aria-hidden": "true" }, h("span", {}, "strict"), h("span", {}, "generous")),
    h("p", { id: "risk-help", class: "muted small" }, "Fraction of the accepted answers that may be incorrect."),
    h("div", { class: "track", "aria-hidden": "true" }, bar),
    coverage,
    basis,
  );
}

function expected(coverage) {
  if (coverage === null) return ["The fraction of accepted queries is unknown."];
  if (coverage === 0) return ["At this risk, nothing is accepted."];
  return ["About ", h("strong", {}, percent(coverage)), " of the queries are accepted."];
}
