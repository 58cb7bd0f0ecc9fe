"""The map as one HTML page that needs nothing else: drag, zoom, point at an image to see its name."""

from __future__ import annotations

import base64
import html
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.place_images import PlaceImages
from kappaplace.data.show import COLOURS
from kappaplace.data.show_view import MapView, Panel

_NAMED = 20_000  # points of each kind that carry their file name; more make the page heavy


def html_page(view: MapView, table: PlaceImages) -> str:
    """The page as text."""
    data = {
        "axes": view.axes,
        "metric": view.metric,
        "labels": view.labels,
        "colours": COLOURS,
        "panels": [_panel(panel, table) for panel in view.panels],
    }
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    page = _PAGE.replace("%TITLE%", html.escape(view.title)).replace("%SENTENCE%", html.escape(view.sentence))
    return page.replace("%COVERAGE%", _coverage(view.counts)).replace("%DATA%", text)


def _panel(panel: Panel, table: PlaceImages) -> dict[str, Any]:
    everything = np.concatenate([panel.references, panel.queries])
    centre = everything.mean(axis=0) if len(everything) else np.zeros(2)
    return {
        "name": panel.name,
        "centre": centre.tolist(),
        "references": _packed(panel.references - centre),
        "queries": _packed(panel.queries - centre),
        "lines": _packed(panel.lines - np.tile(centre, 2)),
        "covered": panel.covered.astype(int).tolist(),
        "names": [table.paths[rows[:_NAMED]].tolist() for rows in panel.rows],
    }


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
        share, colour = float(chosen.mean()), COLOURS["lost" if name == "none" else "found"]
        bar = f'<i style="width:{share * 120:.0f}px;background:{colour}"></i>'
        rows.append(f"<tr><td>{name}</td><td>{bar}{share:.1%}</td></tr>")
    return f"<table><tr><th>positives</th><th>queries</th></tr>{''.join(rows)}</table>"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>%TITLE%</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
  html, body { margin: 0; height: 100%; color: #222; background: #fff; }
  body { font: 14px/1.4 system-ui, sans-serif; display: flex; }
  #box { flex: 0 0 270px; padding: 10px 14px; overflow: auto; border-right: 1px solid #ddd; }
  #box h1 { font-size: 15px; margin: 0 0 4px; overflow-wrap: anywhere; } #box p { margin: 4px 0; }
  #maps { flex: 1; min-width: 0; display: grid; gap: 1px; background: #ddd; overflow: auto;
          grid-template-columns: repeat(auto-fit, minmax(min(100%, 320px), 1fr)); }
  .map { position: relative; min-height: 260px; }
  canvas { position: absolute; inset: 0; width: 100%; height: 100%; background: #fff; cursor: grab;
           touch-action: none; }
  @media (max-width: 700px) { body { flex-direction: column; } #box { flex: none; border: 0; } }
  label { display: block; } label b { display: inline-block; width: 10px; height: 10px; border-radius: 5px; }
  table { border-spacing: 0; margin-top: 6px; font-size: 12px; }
  th, td { text-align: left; padding: 0 10px 0 0; }
  td i { display: inline-block; height: 9px; margin-right: 5px; }
  #tip { position: fixed; display: none; padding: 3px 7px; background: #222e; color: #fff; z-index: 1;
         border-radius: 4px; font-size: 12px; pointer-events: none; max-width: 60%; overflow-wrap: anywhere; }
</style></head><body>
<div id="box"><h1>%TITLE%</h1><p>%SENTENCE%</p><div id="keys"></div>%COVERAGE%
<p><small>drag to move, wheel to zoom, double-click to see all</small></p></div>
<div id="maps"></div><div id="tip"></div>
<script type="application/json" id="data">%DATA%</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("data").textContent), tip = document.getElementById("tip");
const unpack = t => new Float32Array(Uint8Array.from(atob(t), c => c.charCodeAt(0)).buffer);
const hidden = new Set(), ratio = devicePixelRatio, left = 74 * ratio, below = 40 * ratio;
for (const [layer, name] of Object.entries(data.labels)) {
  const label = document.createElement("label");
  const dot = `<b style="background:${data.colours[layer]}"></b>`;
  label.innerHTML = `<input type="checkbox" checked> ${dot} ${name}`;
  label.firstChild.onchange = e => { hidden[e.target.checked ? "delete" : "add"](layer); draw(); };
  document.getElementById("keys").append(label);
}
function map(panel) {
  const refs = unpack(panel.references), asks = unpack(panel.queries), lines = unpack(panel.lines);
  const holder = document.createElement("div"), canvas = document.createElement("canvas");
  holder.className = "map"; holder.append(canvas); document.getElementById("maps").append(holder);
  canvas.setAttribute("aria-label", `map of references and queries ${panel.name}`);
  const pen = canvas.getContext("2d");
  let zoom = [1, 1], middle = [0, 0], held = null;
  function fit() {
    let low = [Infinity, Infinity], high = [-Infinity, -Infinity];
    for (const part of [refs, asks]) for (let i = 0; i < part.length; i++) {
      low[i % 2] = Math.min(low[i % 2], part[i]); high[i % 2] = Math.max(high[i % 2], part[i]);
    }
    if (!isFinite(low[0])) { low = [-1, -1]; high = [1, 1]; }
    middle = [0, 1].map(k => (low[k] + high[k]) / 2);
    zoom = [canvas.width - left, canvas.height - below]
      .map((side, k) => 0.92 * Math.max(side, 1) / Math.max(high[k] - low[k], 1));
    if (data.metric) zoom = [Math.min(...zoom), Math.min(...zoom)];
  }
  const origin = () => [(canvas.width + left) / 2, (canvas.height - below) / 2];
  const px = x => origin()[0] + (x - middle[0]) * zoom[0], py = y => origin()[1] - (y - middle[1]) * zoom[1];
  function dots(points, layer, keep) {
    if (hidden.has(layer)) return;
    pen.fillStyle = data.colours[layer];
    const size = 4 * ratio;
    for (let i = 0; i < points.length / 2; i++) if (!keep || keep(i))
      pen.fillRect(px(points[2 * i]) - size / 2, py(points[2 * i + 1]) - size / 2, size, size);
  }
  function ticks(k, low, high) {  // round numbers of the table's own coordinates
    const [from, to] = [low + panel.centre[k], high + panel.centre[k]], room = k ? 60 * ratio : 110 * ratio;
    let step = 10 ** Math.floor(Math.log10(room / zoom[k]));
    step = [1, 2, 5, 10].map(n => n * step).find(n => n * zoom[k] >= room);
    if (!data.metric) step = Math.max(1, Math.round(step));
    const found = [];
    for (let t = Math.ceil(from / step) * step; t <= to && found.length < 50; t += step) found.push(t);
    return found.map(t => [t - panel.centre[k], String(+t.toFixed(3))]);
  }
  function axes() {
    pen.fillStyle = "#fff"; pen.fillRect(0, 0, left, canvas.height);
    pen.fillRect(0, canvas.height - below, canvas.width, below);
    const right = canvas.width, floor = canvas.height - below;
    const spanX = [(left - origin()[0]) / zoom[0] + middle[0], (right - origin()[0]) / zoom[0] + middle[0]];
    const spanY = [(origin()[1] - floor) / zoom[1] + middle[1], origin()[1] / zoom[1] + middle[1]];
    pen.strokeStyle = "#0001"; pen.lineWidth = ratio; pen.fillStyle = "#444";
    pen.font = `${11 * ratio}px system-ui`; pen.textAlign = "center"; pen.beginPath();
    for (const [x, text] of ticks(0, ...spanX)) {
      pen.moveTo(px(x), 0); pen.lineTo(px(x), floor); pen.fillText(text, px(x), floor + 14 * ratio);
    }
    pen.textAlign = "right";
    for (const [y, text] of ticks(1, ...spanY)) {
      pen.moveTo(left, py(y)); pen.lineTo(right, py(y));
      pen.fillText(text, left - 5 * ratio, py(y) + 4 * ratio);
    }
    pen.stroke(); pen.strokeStyle = "#888"; pen.strokeRect(left, -1, right, floor + 1);
    pen.textAlign = "center"; pen.fillText(data.axes[0], (left + right) / 2, canvas.height - 8 * ratio);
    pen.save(); pen.translate(13 * ratio, floor / 2); pen.rotate(-Math.PI / 2);
    pen.fillText(data.axes[1], 0, 0); pen.restore();
    pen.font = `bold ${12 * ratio}px system-ui`; pen.fillText(panel.name, (left + right) / 2, 16 * ratio);
  }
  function scale() {
    if (!data.metric) return;
    const room = canvas.width * 0.25, unit = 10 ** Math.floor(Math.log10(room / zoom[0]));
    const length = [5, 2, 1].map(n => n * unit).find(n => n * zoom[0] <= room) || unit;
    const y = canvas.height - below - 12 * ratio, x = canvas.width - 16 * ratio;
    pen.strokeStyle = pen.fillStyle = "#222"; pen.lineWidth = 2 * ratio;
    pen.beginPath(); pen.moveTo(x - length * zoom[0], y); pen.lineTo(x, y); pen.stroke();
    pen.font = `${12 * ratio}px system-ui`; pen.textAlign = "right";
    pen.fillText(length >= 1000 ? `${length / 1000} km` : `${length} m`, x, y - 6 * ratio);
  }
  function paint() {
    pen.clearRect(0, 0, canvas.width, canvas.height);
    dots(refs, "reference");
    if (!hidden.has("line")) {
      pen.strokeStyle = data.colours.line; pen.lineWidth = ratio; pen.beginPath();
      for (let i = 0; i < lines.length; i += 4) {
        pen.moveTo(px(lines[i]), py(lines[i + 1])); pen.lineTo(px(lines[i + 2]), py(lines[i + 3]));
      }
      pen.stroke();
    }
    dots(asks, "found", i => panel.covered[i]);
    dots(asks, "lost", i => !panel.covered[i]);
    axes(); scale();
  }
  function nearest(x, y) {
    let best = [10 * ratio, ""];
    [refs, asks].forEach((part, kind) => {
      for (let i = 0; i < part.length / 2; i++) {
        const far = Math.hypot(px(part[2 * i]) - x, py(part[2 * i + 1]) - y);
        const at = k => (part[2 * i + k] + panel.centre[k]).toFixed(data.metric ? 1 : 0);
        const where = data.metric ? `(${at(0)}, ${at(1)})`
          : at(1) < 0 ? "without positives" : `→ reference ${at(1)}`;
        if (far < best[0])
          best = [far, `${kind ? "query" : "reference"} ${panel.names[kind][i] || ""} ${where}`];
      }
    });
    return best[1];
  }
  const at = e => [e.offsetX * ratio, e.offsetY * ratio];
  canvas.onpointerdown = e => { held = at(e); canvas.setPointerCapture(e.pointerId); };
  canvas.onpointerup = () => { held = null; };
  canvas.onpointerleave = () => { tip.style.display = "none"; };
  canvas.onpointermove = e => {
    const here = at(e);
    if (held) {
      middle = [middle[0] - (here[0] - held[0]) / zoom[0], middle[1] + (here[1] - held[1]) / zoom[1]];
      held = here; paint(); return;
    }
    const text = nearest(...here);
    tip.style.display = text ? "block" : "none"; tip.textContent = text;
    tip.style.left = `${e.clientX + 12}px`; tip.style.top = `${e.clientY + 12}px`;
  };
  canvas.onwheel = e => {
    e.preventDefault();
    const here = at(e), aside = [here[0] - origin()[0], origin()[1] - here[1]];
    const world = middle.map((m, k) => m + aside[k] / zoom[k]);
    zoom = zoom.map(z => z * Math.exp(-e.deltaY / 400));
    middle = world.map((w, k) => w - aside[k] / zoom[k]);
    paint();
  };
  canvas.ondblclick = () => { fit(); paint(); };
  return first => {
    canvas.width = holder.clientWidth * ratio; canvas.height = holder.clientHeight * ratio;
    if (first) fit();
    paint();
  };
}
const maps = data.panels.map(map);
function draw(first) { maps.forEach(resize => resize(first === true)); }
addEventListener("resize", () => draw());
draw(true);
</script></body></html>
"""
