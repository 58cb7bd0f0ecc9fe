"""Labelling as one HTML page that needs nothing else: two pictures, three answers, a file at the end.

No address outside of it is asked for, and its policy forbids any: scripts and styles are those of the page
(told by their hashes), pictures lie inside. Answers are kept in the browser as they are given.

A labelling page of a sheet: every query beside its match, inside one HTML file.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kappaplace.errors import KappaPlaceError
from kappaplace.files import replace_file
from kappaplace.maps import PlaceMap, Sheet, head_lines, match_picture, query_picture
from kappaplace.progress import track


@dataclass(frozen=True)
class Question:
    """One query with its match; a picture is a JPEG, None where it cannot be opened."""

    order: int
    query: str
    match: str
    label: str
    query_picture: bytes | None
    match_picture: bytes | None


def label_page(
    questions: Sequence[Question], *, title: str, radius: float, sample: str, head: Sequence[str], file: str
) -> str:
    """The page as text; ``head`` is what stands in the labels file before its columns."""
    data = {
        "sample": sample,
        "head": list(head),
        "file": file,
        "rows": [[q.order, q.query, q.match, q.label] for q in questions],
        "pictures": [[_data(q.query_picture), _data(q.match_picture)] for q in questions],
    }
    text = json.dumps(data).replace("<", "\\u003c")
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(_STYLE)}; script-src {_hash(_SCRIPT)}; "
        "base-uri 'none'; form-action 'none'"
    )
    page = _PAGE.replace("%POLICY%", policy).replace("%STYLE%", _STYLE).replace("%SCRIPT%", _SCRIPT)
    page = page.replace("%TITLE%", html.escape(title)).replace("%RADIUS%", f"{radius:g}")
    return page.replace("%DATA%", text)


def _data(jpeg: bytes | None) -> str:
    return "" if jpeg is None else "data:image/jpeg;base64," + base64.b64encode(jpeg).decode("ascii")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"


_STYLE = """
:root { color-scheme: light dark; }
:root { --ink: #1a1a1a; --soft: #555; --line: #ccc; --paper: #fff; --face: #f2f2f2; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --soft: #b8b8b8; --line: #555; --paper: #16181b; --face: #26292e; }
}
* { box-sizing: border-box; }
body { font: 16px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
body { margin: 0; min-height: 100dvh; display: flex; flex-direction: column; }
header, main { padding: .5rem 1rem; width: 100%; max-width: 80rem; margin: 0 auto; }
main { flex: 1; min-height: 0; }
h1 { font-size: 1.1rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: .2rem 0 .5rem; }
p { margin: .2rem 0; }
.soft { color: var(--soft); font-size: .9rem; }
.line { display: flex; flex-wrap: wrap; gap: .2rem 1rem; }
.line { align-items: center; justify-content: space-between; }
progress { width: 100%; height: .6rem; accent-color: #0072b2; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: .8rem; }
@media (max-width: 40rem) and (orientation: portrait) { .pair { grid-template-columns: 1fr; } }
figure { margin: 0; }
figure img, .gone { width: 100%; height: min(58dvh, 32rem); object-fit: contain; border-radius: 6px; }
figure img, .gone { background: var(--face); display: block; }
@media (max-width: 40rem) and (orientation: portrait) { figure img, .gone { height: 28dvh; } }
@media (max-height: 30rem) {
  h1, h2 { display: none; }
  header, main { padding-block: .2rem; }
  figure img, .gone { height: 48dvh; }
  button { min-height: 2.75rem; }
}
.gone { display: grid; place-content: center; text-align: center; padding: 1rem; }
figcaption { color: var(--soft); font-size: .85rem; overflow-wrap: anywhere; }
.answers { position: sticky; bottom: 0; background: var(--paper); border-top: 1px solid var(--line); }
.answers div { display: grid; grid-template-columns: repeat(4, 1fr); gap: .5rem; padding: .5rem 1rem; }
.answers div { max-width: 80rem; margin: 0 auto; }
button { font: inherit; color: var(--ink); background: var(--face); border: 2px solid var(--line); }
button { min-height: 3rem; border-radius: 8px; padding: .3rem .5rem; cursor: pointer; }
button:focus-visible { outline: 3px solid #0072b2; outline-offset: 2px; }
button[aria-pressed="true"] { border-color: #0072b2; font-weight: 700; }
button:disabled { opacity: .5; cursor: default; }
kbd { font: .8rem ui-monospace, monospace; color: var(--soft); border: 1px solid var(--line); }
kbd { border-radius: 4px; padding: 0 .3rem; }
@media (hover: none) { kbd { display: none; } }
[hidden] { display: none !important; }
.warn { border-left: 4px solid #d55e00; padding-left: .6rem; }
"""

_SCRIPT = """
"use strict";
(() => {
  const find = id => document.getElementById(id);
  const data = JSON.parse(find("data").textContent);
  const key = "kappaplace-labels:" + data.sample, known = ["yes", "no", "unknown"];
  const labels = data.rows.map(row => row[3]);
  let at = 0, kept = true, saved = true;

  try {
    const before = JSON.parse(localStorage.getItem(key) || "[]");
    if (Array.isArray(before) && before.length === labels.length) {
      before.forEach((label, i) => { if (known.includes(label)) labels[i] = label; });
    }
  } catch (error) { kept = false; }

  function keep() {
    try { localStorage.setItem(key, JSON.stringify(labels)); kept = true; } catch (error) { kept = false; }
  }
  const done = () => labels.filter(label => label).length;
  const firstOpen = () => { const i = labels.indexOf(""); return i < 0 ? labels.length : i; };

  function picture(side, source, name) {
    const image = find(side + "-image"), gone = find(side + "-gone");
    image.hidden = !source; gone.hidden = Boolean(source);
    if (source) { image.src = source; image.alt = side + " " + name; } else { image.removeAttribute("src"); }
    find(side + "-name").textContent = name;
  }

  function show() {
    const count = done(), total = labels.length, over = at >= total;
    find("place").textContent = over ? `${count} of ${total} labelled` : `${at + 1} of ${total}`;
    find("progress").max = total; find("progress").value = count;
    find("progress").textContent = `${count} of ${total}`;
    find("question").hidden = over; find("end").hidden = !over;
    find("unkept").hidden = kept;
    if (!over) {
      const [, query, match] = data.rows[at];
      picture("query", data.pictures[at][0], query);
      picture("match", data.pictures[at][1], match);
    }
    for (const label of known) {
      find(label).setAttribute("aria-pressed", String(!over && labels[at] === label));
      find(label).disabled = over;
    }
    find("back").disabled = at === 0;
    find("count").textContent = known.map((name, i) =>
      `${labels.filter(label => label === name).length} ${["yes", "no", "don’t know"][i]}`).join(", ");
  }

  function answer(label) {
    if (at >= labels.length) { return; }
    labels[at] = label; saved = false; at += 1;
    keep(); show();
  }
  function back() { if (at > 0) { at -= 1; show(); } }

  const cell = value => /[",\\r\\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value;
  function text() {
    const rows = data.rows.map(([order, query, match], i) => [String(order), query, match, labels[i]]);
    const lines = [["order", "query", "match", "label"], ...rows].map(row => row.map(cell).join(","));
    return [...data.head, ...lines].join("\\r\\n") + "\\r\\n";
  }
  function save() {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text()], { type: "text/csv" }));
    link.download = data.file; document.body.append(link); link.click(); link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    saved = true;
    find("said").textContent = `${done()} labels saved as ${data.file}.`;
  }

  for (const label of known) { find(label).addEventListener("click", () => answer(label)); }
  find("back").addEventListener("click", back);
  for (const button of document.querySelectorAll(".save")) { button.addEventListener("click", save); }
  document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey) { return; }
    const name = event.key.toLowerCase();
    if (name === "y") { answer("yes"); } else if (name === "n") { answer("no"); }
    else if (name === "u") { answer("unknown"); } else if (name === "s") { save(); }
    else if (["b", "backspace", "arrowleft"].includes(name)) { event.preventDefault(); back(); }
  });
  addEventListener("beforeunload", event => { if (!kept && !saved) { event.preventDefault(); } });
  at = firstOpen(); show();
})();
"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="%POLICY%">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>%TITLE%</title>
<style>%STYLE%</style>
</head>
<body>
<header>
<div class="line"><h1>%TITLE%</h1><button type="button" class="save">Save labels <kbd>s</kbd></button></div>
<progress id="progress" aria-label="labelled so far" value="0" max="1"></progress>
<div class="line soft"><span id="place" role="status"></span><span id="count"></span></div>
<p class="soft" id="said" role="status"></p>
<p class="warn" id="unkept" hidden>This browser does not keep your answers: save them before you close the
page.</p>
</header>
<main>
<section id="question" aria-labelledby="asked">
<h2 id="asked">Is this the same place?</h2>
<div class="pair">
<figure><img id="query-image" alt=""><div class="gone" id="query-gone" hidden>cannot be opened</div>
<figcaption>query: <span id="query-name"></span></figcaption></figure>
<figure><img id="match-image" alt=""><div class="gone" id="match-gone" hidden>cannot be opened</div>
<figcaption>best match: <span id="match-name"></span></figcaption></figure>
</div>
<p class="soft">Yes: taken within about %RADIUS% m of each other, and you see the same things. If you cannot
tell, say so: it is counted as wrong, which is the safe side.</p>
</section>
<section id="end" hidden>
<h2>Done</h2>
<p>Save the labels and give the file to <code>kappaplace calibrate MAP --labels FILE</code>.</p>
<p><button type="button" class="save">Save labels</button></p>
</section>
<noscript><p class="warn">This page needs JavaScript.</p></noscript>
</main>
<nav class="answers" aria-label="Answers"><div>
<button type="button" id="yes" aria-pressed="false">Yes <kbd>y</kbd></button>
<button type="button" id="no" aria-pressed="false">No <kbd>n</kbd></button>
<button type="button" id="unknown" aria-pressed="false">Don’t know <kbd>u</kbd></button>
<button type="button" id="back">Back <kbd>b</kbd></button>
</div></nav>
<script type="application/json" id="data">%DATA%</script>
<script>%SCRIPT%</script>
</body>
</html>
"""


PIXELS = 480
"""Longer side of each picture: enough to tell places, small enough for a phone."""


def write_label_page(
    place_map: PlaceMap, sheet: Sheet, page: str | Path, labels_name: str, *, pixels: int = PIXELS
) -> int:
    """Write the page, which saves its labels as ``labels_name``; how many pictures cannot be opened."""
    if sheet.sampling is None:
        raise KappaPlaceError("A labelling page is made of queries drawn at random; draw them first.")
    questions = []
    with track("Shrinking pictures", len(sheet.rows)) as bar:
        for position, row in enumerate(sheet.rows):
            pictures = (
                query_picture(sheet, position, pixels),
                match_picture(place_map, sheet, position, pixels),
            )
            questions.append(Question(row.order, row.query, row.match, row.label, *pictures))
            bar.advance()
    if all(question.match_picture is None for question in questions):
        raise KappaPlaceError(
            f"None of the map's images can be opened (for instance {questions[0].match!r}), so there is "
            "nothing to compare; bring them back, or build the map with --thumbnails."
        )
    text = label_page(
        questions,
        title=f"Labels for {sheet.sampling.map}",
        radius=place_map.manifest.radius,
        sample=sheet.sampling.sample,
        head=head_lines(sheet),
        file=labels_name,
    )
    data = text.encode("utf-8", "backslashreplace")
    replace_file(Path(page), lambda part: part.write_bytes(data))
    return sum((q.query_picture is None) + (q.match_picture is None) for q in questions)
