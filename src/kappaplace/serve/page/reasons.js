// Reasons why an answer is not accepted, in comparison with the images of this map.

import { known, number, percent, quantile, rank, similarity } from "./format.js";

const BLURRED = 0.1; // fraction of the map's images with a κ as low as the query
const SMALL_MARGIN = 0.03; // similarity between the best place and the next one
const STANDS_OUT = 3; // standard deviations above the similarities of the whole map

/** Typical values of the images of a map. */
export function habits(references) {
  const sorted = (key) => references.map((r) => r[key]).filter(known).sort((a, b) => a - b);
  return { kappa: sorted("kappa"), distinctiveness: sorted("distinctiveness") };
}

/** A list of {title, words}, the simplest reason first. */
export function reasons(answer, decision, map) {
  const reasons = [];
  const best = answer.matches[0];
  if (!best) return reasons;
  const { margin, aliasing, "z-score": z } = answer.signals ?? {};
  if (answer.in_map === false) {
    reasons.push({
      title: "Probably not in this map",
      words: `The probability that it was taken inside the map is only ${percent(answer.inside)}.`,
    });
  }
  const below = map.kappa.length && known(answer.kappa) ? rank(map.kappa, answer.kappa) : null;
  if (below !== null && below <= BLURRED) {
    const usual = `${number(quantile(map.kappa, 0.1))} to ${number(quantile(map.kappa, 0.9))}`;
    reasons.push({
      title: "The photo has little information",
      words: `Its κ of ${number(answer.kappa)} is below the usual values of this map (${usual}): blur, darkness, or an obstacle. Try a sharper photo.`,
    });
  }
  const resembles = known(aliasing) && aliasing >= 0;
  if ((known(margin) && -margin < SMALL_MARGIN) || resembles) {
    const words = resembles
      ? "The matched place is more similar to another place of this map than to your photo."
      : `The next place of this map is only ${similarity(-margin)} less similar.`;
    reasons.push({ title: "An ambiguous place", words: `${words} Point the camera at something unique.` });
  }
  const usualOther = quantile(map.distinctiveness, 0.5);
  const faint = known(z) && -z < STANDS_OUT;
  if ((usualOther !== null && best.similarity <= usualOther) || faint) {
    const words = faint
      ? `The similarity of the best match is only ${number(-z)} standard deviations above the rest of the map.`
      : `Different places of this map are often as similar to each other (${similarity(usualOther)}) as your photo is to its best match.`;
    reasons.push({ title: `Low similarity (${similarity(best.similarity)})`, words });
  }
  if (!reasons.length && (decision === "doubtful" || decision === "reject")) {
    reasons.push({
      title: "No single reason",
      words: `No single signal is unusual, but together they give a probability of ${percent(answer.probability)}, which is too low for the risk you chose.`,
    });
  }
  return reasons;
}

/** What speaks for an answer, in the same form. */
export function supports(answer, { habits: map, info }) {
  const found = [];
  const { margin } = answer.signals ?? {};
  if (answer.pose?.matches > 1) {
    found.push({ title: `${answer.pose.matches} matches agree`, words: `They are within ${number(info.radius)} m of the best match.` });
  }
  if (known(margin) && -margin >= SMALL_MARGIN) {
    found.push({ title: "It stands out", words: `The best other place of this map is ${similarity(-margin)} less similar.` });
  }
  if (map.kappa.length && known(answer.kappa) && rank(map.kappa, answer.kappa) > BLURRED) {
    found.push({ title: "The photo is clear", words: `Its κ of ${number(answer.kappa)} is usual for this map.` });
  }
  if (!found.length) {
    found.push({ title: "All signals together", words: `They give a probability of ${percent(answer.probability)}.` });
  }
  return found;
}
