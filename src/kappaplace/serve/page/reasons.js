// Why an answer is not accepted, in plain words, measured against this map itself.

import { known, number, percent, quantile, rank, similarity } from "./format.js";

const BLURRED = 0.1; // share of the map's own images that are as unsure as the query
const SMALL_MARGIN = 0.03; // similarity by which the best place leads the next one
const STANDS_OUT = 3; // standard deviations above the similarities of the whole map

/** What a map's own images are like; answers are compared with it. */
export function habits(references) {
  const sorted = (key) => references.map((r) => r[key]).filter(known).sort((a, b) => a - b);
  return { kappa: sorted("kappa"), distinctiveness: sorted("distinctiveness") };
}

/** A list of {title, words}, the plainest reason first. */
export function reasons(answer, decision, map) {
  const found = [];
  const best = answer.matches[0];
  if (!best) return found;
  const { margin, aliasing, "z-score": z } = answer.signals ?? {};
  if (answer.in_map === false) {
    found.push({
      title: "Probably not in this map",
      words: `It was taken inside the map with a probability of ${percent(answer.inside)} only.`,
    });
  }
  const below = map.kappa.length && known(answer.kappa) ? rank(map.kappa, answer.kappa) : null;
  if (below !== null && below <= BLURRED) {
    const usual = `${number(quantile(map.kappa, 0.1))} to ${number(quantile(map.kappa, 0.9))}`;
    found.push({
      title: "The photo itself says little",
      words: `Its κ of ${number(answer.kappa)} lies below what is usual in this map (${usual}): blur, darkness, or something in the way. A sharper photo would help.`,
    });
  }
  const resembles = known(aliasing) && aliasing >= 0;
  if ((known(margin) && -margin < SMALL_MARGIN) || resembles) {
    const words = resembles
      ? "The matched place looks more like another place of this map than like your photo."
      : `The next place of this map is only ${similarity(-margin)} less similar.`;
    found.push({ title: "An ambiguous place", words: `${words} Turn the camera towards something that only exists here.` });
  }
  const usualOther = quantile(map.distinctiveness, 0.5);
  const faint = known(z) && -z < STANDS_OUT;
  if ((usualOther !== null && best.similarity <= usualOther) || faint) {
    const words = faint
      ? `The best match stands only ${number(-z)} standard deviations above the rest of the map.`
      : `Different places of this map are often as similar to each other (${similarity(usualOther)}) as your photo is to its best match.`;
    found.push({ title: `Low similarity (${similarity(best.similarity)})`, words });
  }
  if (!found.length && (decision === "doubtful" || decision === "reject")) {
    found.push({
      title: "No single reason",
      words: `Each sign by itself is ordinary, but together they make the match right with a probability of ${percent(answer.probability)}, too little for the risk you accept.`,
    });
  }
  return found;
}
