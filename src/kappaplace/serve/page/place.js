// The place of an answer in words, and what to do with it: copy it, open it, save it.

import { h, say } from "./dom.js";
import { known, placed } from "./format.js";
import { toDegrees, utmZone } from "./tiles.js";

const OSM = "https://www.openstreetmap.org/";
const coordinate = new Intl.NumberFormat("en-GB", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

/** Latitude and longitude of an answer or a match; null if the map has no location on Earth. */
export function degreesOf(thing, at, frame) {
  if (known(thing?.latitude) && known(thing?.longitude)) return [thing.latitude, thing.longitude];
  const zone = utmZone(frame ?? "");
  return zone && placed(at) ? toDegrees(at.x, at.y, zone).reverse() : null;
}

/** A distance rounded up, so that a radius keeps its probability. */
const upwards = (value) => (value >= 10 ? String(Math.ceil(value)) : String(Math.ceil(value * 10) / 10));

/** {text, degrees, radius}; text is empty if there is no place. */
export function placeOf(answer, frame) {
  const { pose } = answer;
  const degrees = degreesOf(answer, pose, frame);
  const radius = known(answer.radius) && placed(pose) ? `± ${upwards(answer.radius)} m` : "";
  if (degrees) return { text: degrees.map((value) => value.toFixed(5)).join(", "), degrees, radius };
  return { text: placed(pose) ? `x ${coordinate.format(pose.x)}, y ${coordinate.format(pose.y)}` : "", degrees: null, radius };
}

/** GeoJSON with the estimate and the matches. */
export function geojson(answer, frame) {
  const point = (degrees, properties) => ({ type: "Feature", geometry: { type: "Point", coordinates: [degrees[1], degrees[0]] }, properties });
  const { pose, matches, radius = null, probability, decision } = answer;
  const place = placeOf(answer, frame);
  const features = place.degrees ? [point(place.degrees, { kind: "estimate", probability, decision, radius, heading: pose?.heading ?? null })] : [];
  for (const match of matches) {
    const degrees = degreesOf(match, match, frame);
    if (degrees) features.push(point(degrees, { kind: "match", rank: match.rank, name: match.name, probability: match.probability, similarity: match.similarity }));
  }
  return { type: "FeatureCollection", features };
}

function save(name, kind, value) {
  const url = URL.createObjectURL(new Blob([JSON.stringify(value, null, 1)], { type: kind }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // The clipboard needs HTTPS or this machine; a selected field works everywhere.
    const field = h("textarea", { class: "unseen" });
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
}

/** Buttons for the place of an answer. */
export function actions(answer, frame, name) {
  const { text, degrees, radius } = placeOf(answer, frame);
  const stem = name.replace(/\.\w+$/, "") || "answer";
  const button = (words, act) => h("button", { type: "button", class: "plain", onclick: act }, words);
  const copying = button("Copy", async () => {
    await copy(`${text}${radius ? ` ${radius}` : ""}`);
    copying.textContent = "Copied";
    say("The place was copied.");
    setTimeout(() => copying.replaceChildren("Copy"), 2000);
  });
  const osm = degrees && h("a", { class: "plain", target: "_blank", rel: "noopener noreferrer", href: `${OSM}?mlat=${degrees[0].toFixed(6)}&mlon=${degrees[1].toFixed(6)}#map=18/${degrees[0].toFixed(5)}/${degrees[1].toFixed(5)}` }, "OpenStreetMap");
  return h(
    "div",
    { class: "actions" },
    text ? copying : null,
    osm,
    button("JSON", () => save(`${stem}.json`, "application/json", answer)),
    degrees ? button("GeoJSON", () => save(`${stem}.geojson`, "application/geo+json", geojson(answer, frame))) : null,
  );
}
