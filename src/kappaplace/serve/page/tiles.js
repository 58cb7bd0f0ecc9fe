// A background of map tiles, only if the operator configured a URL, and only for UTM frames.

import { h } from "./dom.js";

const MOST_TILES = 80;
const EARTH = 6378137;
const cache = new Map();

/** Draw below the references; each tile is placed by three corners, because UTM and tiles are slightly rotated. */
export function drawTiles(pen, view, { url, frame, shown, largest = 19 }, ratio, redraw) {
  const zone = utmZone(frame);
  if (!zone) return;
  const corners = [[0, 0], [view.width, 0], [0, view.height], [view.width, view.height]].map(([x, y]) => toDegrees(...view.toMap(x, y), zone));
  const latitude = corners[0][1];
  const perPixel = (2 * Math.PI * EARTH * Math.cos((latitude * Math.PI) / 180)) / 256;
  const level = Math.min(Math.max(Math.round(Math.log2(perPixel * view.scale)), 0), largest);
  const places = corners.map(([lon, lat]) => toTile(lon, lat, level));
  const [columns, rows] = [0, 1].map((i) => places.map((place) => Math.floor(place[i])));
  const [left, right] = [Math.min(...columns), Math.max(...columns)];
  const [top, bottom] = [Math.min(...rows), Math.max(...rows)];
  if ((right - left + 1) * (bottom - top + 1) > MOST_TILES) return;
  for (let row = top; row <= bottom; row += 1) {
    for (let column = left; column <= right; column += 1) {
      const image = tile(url, level, column, row, redraw);
      if (!image) continue;
      const [a, b, c] = [[0, 0], [1, 0], [0, 1]].map(([i, j]) => view.toScreen(...toUtm(...fromTile(column + i, row + j, level), zone)));
      pen.save();
      pen.globalAlpha = shown;
      pen.setTransform(
        ...[(b[0] - a[0]) / 256, (b[1] - a[1]) / 256, (c[0] - a[0]) / 256, (c[1] - a[1]) / 256, a[0], a[1]].map((v) => v * ratio),
      );
      pen.drawImage(image, 0, 0, 256.5, 256.5); // half a pixel more hides seams
      pen.restore();
    }
  }
}

/** Attribution of the operator; URLs in the text become links. */
export function attribution(words) {
  const parts = words.split(/(https?:\/\/[^\s,;()]+)/);
  return h("p", { class: "attribution" }, parts.map((part, i) => (i % 2 ? h("a", { href: part, target: "_blank", rel: "noopener noreferrer" }, part.replace(/^https?:\/\//, "")) : part)));
}

function tile(url, z, x, y, redraw) {
  const source = url.replace("{z}", z).replace("{x}", x).replace("{y}", y);
  if (!cache.has(source)) {
    const image = new Image();
    image.referrerPolicy = "strict-origin-when-cross-origin";
    image.onload = redraw;
    image.src = source;
    cache.set(source, image);
  }
  const image = cache.get(source);
  return image.complete && image.naturalWidth ? image : null;
}

export function utmZone(frame) {
  const code = /^EPSG:32([67])(\d\d)$/.exec(frame);
  return code ? { meridian: Number(code[2]) * 6 - 183, south: code[1] === "7" } : null;
}

const toTile = (lon, lat, z) => {
  const turn = (lat * Math.PI) / 180;
  return [((lon + 180) / 360) * 2 ** z, ((1 - Math.asinh(Math.tan(turn)) / Math.PI) / 2) * 2 ** z];
};
const fromTile = (x, y, z) => [(x / 2 ** z) * 360 - 180, (Math.atan(Math.sinh(Math.PI * (1 - (2 * y) / 2 ** z))) * 180) / Math.PI];

// Transverse Mercator after Krüger, third order: millimetres within a zone.
const N = 1 / 298.257223563 / (2 - 1 / 298.257223563);
const A = (EARTH / (1 + N)) * (1 + N ** 2 / 4 + N ** 4 / 64);
const FORTH = [N / 2 - (2 * N ** 2) / 3 + (5 * N ** 3) / 16, (13 * N ** 2) / 48 - (3 * N ** 3) / 5, (61 * N ** 3) / 240];
const BACK = [N / 2 - (2 * N ** 2) / 3 + (37 * N ** 3) / 96, N ** 2 / 48 + N ** 3 / 15, (17 * N ** 3) / 480];
const DEGREES = [2 * N - (2 * N ** 2) / 3 - 2 * N ** 3, (7 * N ** 2) / 3 - (8 * N ** 3) / 5, (56 * N ** 3) / 15];
const SCALE = 0.9996;

export function toUtm(lon, lat, { meridian, south }) {
  const sine = Math.sin((lat * Math.PI) / 180);
  const root = (2 * Math.sqrt(N)) / (1 + N);
  const t = Math.sinh(Math.atanh(sine) - root * Math.atanh(root * sine));
  const turn = ((lon - meridian) * Math.PI) / 180;
  const [xi, eta] = [Math.atan2(t, Math.cos(turn)), Math.atanh(Math.sin(turn) / Math.sqrt(1 + t * t))];
  let [east, north] = [eta, xi];
  FORTH.forEach((a, i) => {
    const k = 2 * (i + 1);
    east += a * Math.cos(k * xi) * Math.sinh(k * eta);
    north += a * Math.sin(k * xi) * Math.cosh(k * eta);
  });
  return [500000 + SCALE * A * east, (south ? 1e7 : 0) + SCALE * A * north];
}

export function toDegrees(east, north, { meridian, south }) {
  const [xi, eta] = [(north - (south ? 1e7 : 0)) / (SCALE * A), (east - 500000) / (SCALE * A)];
  let [x, e] = [xi, eta];
  BACK.forEach((b, i) => {
    const k = 2 * (i + 1);
    x -= b * Math.sin(k * xi) * Math.cosh(k * eta);
    e -= b * Math.cos(k * xi) * Math.sinh(k * eta);
  });
  const chi = Math.asin(Math.sin(x) / Math.cosh(e));
  let latitude = chi;
  DEGREES.forEach((d, i) => (latitude += d * Math.sin(2 * (i + 1) * chi)));
  return [meridian + (Math.atan2(Math.sinh(e), Math.cos(x)) * 180) / Math.PI, (latitude * 180) / Math.PI];
}
