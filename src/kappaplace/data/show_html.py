"""The map as one HTML page that needs nothing else: drag, zoom, point at an image to see its name."""

from __future__ import annotations

import base64
import html
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.place_images import PlaceImages
from kappaplace.data.show import FOUND, LINE, LOST, REFERENCE, MapView

_NAMED = 20_000  # points of each kind that carry their file name; more make the page heavy


def html_page(view: MapView, table: PlaceImages) -> str:
    """The page as text."""
    everything = np.concatenate([view.references, view.queries])
    centre = everything.mean(axis=0) if len(everything) else np.zeros(2)
    data = {
        "axes": view.axes,
        "metric": view.axes[0].endswith("m)"),
        "centre": centre.tolist(),
        "references": _packed(view.references - centre),
        "queries": _packed(view.queries - centre),
        "lines": _packed(view.lines - np.tile(centre, 2)),
        "covered": view.covered.astype(int).tolist(),
        "names": [table.paths[rows[:_NAMED]].tolist() for rows in view.rows],
        "colours": {"reference": REFERENCE, "found": FOUND, "lost": LOST, "line": LINE},
    }
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    page = _PAGE.replace("%TITLE%", html.escape(view.title)).replace("%SENTENCE%", html.escape(view.sentence))
    return page.replace("%COVERAGE%", _coverage(view.counts)).replace("%DATA%", text)


def _packed(points: NDArray[np.float64]) -> str:
    """Float32 numbers around the centre (a millimetre at 8 km) as base64."""
    return base64.b64encode(np.ascontiguousarray(points, dtype="<f4").tobytes()).decode()


def _coverage(counts: NDArray[np.int64]) -> str:
    """Share of queries by number of positives, as a small table with bars."""
    if not len(counts):
        return "<p>no queries</p>"
    bands: list[tuple[str, Any]] = [
        ("none", counts == 0),
        ("1", counts == 1),
        ("2–5", (counts >= 2) & (counts <= 5)),
        ("6–20", (counts >= 6) & (counts <= 20)),
        ("21–100", (counts >= 21) & (counts <= 100)),
        ("more", counts > 100),
    ]
    rows = []
    for name, chosen in bands:
        share, colour = float(chosen.mean()), LOST if name == "none" else FOUND
        bar = f'<i style="width:{share * 120:.0f}px;background:{colour}"></i>'
        rows.append(f"<tr><td>{name}</td><td>{bar}{share:.1%}</td></tr>")
    return f"<table><tr><th>positives</th><th>queries</th></tr>{''.join(rows)}</table>"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>%TITLE%</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
  html, body { margin: 0; height: 100%; color: #222; background: #fff; }
  body { font: 14px/1.4 system-ui, sans-serif; }
  canvas { position: absolute; inset: 0; width: 100%; height: 100%; cursor: grab; touch-action: none; }
  #box { position: absolute; top: 12px; left: 12px; max-width: 360px; padding: 10px 14px; background: #fffe;
         border: 1px solid #ddd; border-radius: 6px; }
  #box h1 { font-size: 15px; margin: 0 0 4px; } #box p { margin: 4px 0; }
  label { display: block; } label b { display: inline-block; width: 10px; height: 10px; border-radius: 5px; }
  table { border-spacing: 0; margin-top: 6px; font-size: 12px; }
  th, td { text-align: left; padding: 0 10px 0 0; }
  td i { display: inline-block; height: 9px; margin-right: 5px; }
  #tip { position: absolute; display: none; padding: 3px 7px; background: #222e; color: #fff;
         border-radius: 4px; font-size: 12px; pointer-events: none; max-width: 60%; overflow-wrap: anywhere; }
</style></head><body>
<canvas id="map" aria-label="map of references and queries"></canvas>
<div id="box"><h1>%TITLE%</h1><p>%SENTENCE%</p><div id="keys"></div>%COVERAGE%
<p><small>drag to move, wheel to zoom, double-click to see all</small></p></div>
<div id="tip"></div>
<script type="application/json" id="data">%DATA%</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const unpack = t => new Float32Array(Uint8Array.from(atob(t), c => c.charCodeAt(0)).buffer);
const refs = unpack(data.references), asks = unpack(data.queries), lines = unpack(data.lines);
const canvas = document.getElementById("map"), tip = document.getElementById("tip");
const pen = canvas.getContext("2d");
const layers = [["references", data.colours.reference], ["lines to positives", data.colours.line],
  ["queries with positives", data.colours.found], ["queries without", data.colours.lost]];
const shown = layers.map(() => true);
layers.forEach(([name, colour], k) => {
  const label = document.createElement("label");
  label.innerHTML = `<input type="checkbox" checked> <b style="background:${colour}"></b> ${name}`;
  label.firstChild.onchange = e => { shown[k] = e.target.checked; draw(); };
  document.getElementById("keys").append(label);
});
let zoom = [1, 1], middle = [0, 0];
function fit() {
  let low = [Infinity, Infinity], high = [-Infinity, -Infinity];
  for (const part of [refs, asks]) for (let i = 0; i < part.length; i++) {
    low[i % 2] = Math.min(low[i % 2], part[i]); high[i % 2] = Math.max(high[i % 2], part[i]);
  }
  if (!isFinite(low[0])) { low = [-1, -1]; high = [1, 1]; }
  middle = [0, 1].map(k => (low[k] + high[k]) / 2);
  zoom = [canvas.width, canvas.height].map((side, k) => 0.9 * side / Math.max(high[k] - low[k], 1));
  if (data.metric) zoom = [Math.min(...zoom), Math.min(...zoom)];
}
const px = x => canvas.width / 2 + (x - middle[0]) * zoom[0];
const py = y => canvas.height / 2 - (y - middle[1]) * zoom[1];
function dots(points, colour, keep) {
  pen.fillStyle = colour;
  const size = 4 * devicePixelRatio;
  for (let i = 0; i < points.length / 2; i++) {
    if (keep && !keep(i)) continue;
    pen.fillRect(px(points[2 * i]) - size / 2, py(points[2 * i + 1]) - size / 2, size, size);
  }
}
function scale() {
  if (!data.metric) return;
  const unit = 10 ** Math.floor(Math.log10(canvas.width * 0.25 / zoom[0]));
  const length = [5, 2, 1].map(n => n * unit).find(n => n * zoom[0] <= canvas.width * 0.25) || unit;
  const y = canvas.height - 20 * devicePixelRatio, x = canvas.width - 24 * devicePixelRatio;
  pen.strokeStyle = pen.fillStyle = "#222"; pen.lineWidth = 2 * devicePixelRatio;
  pen.beginPath(); pen.moveTo(x - length * zoom[0], y); pen.lineTo(x, y); pen.stroke();
  pen.font = `${12 * devicePixelRatio}px system-ui`; pen.textAlign = "right";
  pen.fillText(length >= 1000 ? `${length / 1000} km` : `${length} m`, x, y - 6 * devicePixelRatio);
}
function draw() {
  pen.clearRect(0, 0, canvas.width, canvas.height);
  if (shown[0]) dots(refs, layers[0][1]);
  if (shown[1]) {
    pen.strokeStyle = layers[1][1]; pen.lineWidth = devicePixelRatio; pen.beginPath();
    for (let i = 0; i < lines.length; i += 4) {
      pen.moveTo(px(lines[i]), py(lines[i + 1])); pen.lineTo(px(lines[i + 2]), py(lines[i + 3]));
    }
    pen.stroke();
  }
  if (shown[2]) dots(asks, layers[2][1], i => data.covered[i]);
  if (shown[3]) dots(asks, layers[3][1], i => !data.covered[i]);
  scale();
}
function resize(first) {
  canvas.width = innerWidth * devicePixelRatio; canvas.height = innerHeight * devicePixelRatio;
  if (first) fit();
  draw();
}
function nearest(x, y) {
  let best = [10 * devicePixelRatio, ""];
  [refs, asks].forEach((part, kind) => {
    for (let i = 0; i < part.length / 2; i++) {
      const far = Math.hypot(px(part[2 * i]) - x, py(part[2 * i + 1]) - y);
      if (far < best[0]) best = [far, `${kind ? "query" : "reference"} ${data.names[kind][i] || ""} `
        + `(${(part[2 * i] + data.centre[0]).toFixed(1)}, ${(part[2 * i + 1] + data.centre[1]).toFixed(1)})`];
    }
  });
  return best[1];
}
let held = null;
canvas.onpointerdown = e => { held = [e.clientX, e.clientY]; canvas.setPointerCapture(e.pointerId); };
canvas.onpointerup = () => { held = null; };
canvas.onpointermove = e => {
  if (held) {
    middle[0] -= (e.clientX - held[0]) * devicePixelRatio / zoom[0];
    middle[1] += (e.clientY - held[1]) * devicePixelRatio / zoom[1];
    held = [e.clientX, e.clientY]; draw(); return;
  }
  const text = nearest(e.clientX * devicePixelRatio, e.clientY * devicePixelRatio);
  tip.style.display = text ? "block" : "none"; tip.textContent = text;
  tip.style.left = `${e.clientX + 12}px`; tip.style.top = `${e.clientY + 12}px`;
};
canvas.onwheel = e => {
  e.preventDefault();
  const factor = Math.exp(-e.deltaY / 400), at = [e.clientX * devicePixelRatio, e.clientY * devicePixelRatio];
  const aside = [at[0] - canvas.width / 2, canvas.height / 2 - at[1]];
  const world = middle.map((m, k) => m + aside[k] / zoom[k]);
  zoom = zoom.map(z => z * factor);
  middle = world.map((w, k) => w - aside[k] / zoom[k]);
  draw();
};
canvas.ondblclick = () => { fit(); draw(); };
addEventListener("resize", () => resize(false));
resize(true);
</script></body></html>
"""
