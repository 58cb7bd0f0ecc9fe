
"use strict";
(() => {
  const find = id => document.getElementById(id);
  const data = JSON.parse(find("data").textContent);
  const key = "kappaplace-labels:" + data.sample, choices = ["yes", "no", "unknown"];
  const labels = data.rows.map(row => row[3]);
  let at = 0, stored = true, saved = true;

  try {
    const before = JSON.parse(localStorage.getItem(key) || "[]");
    if (Array.isArray(before) && before.length === labels.length) {
      before.forEach((label, i) => { if (choices.includes(label)) labels[i] = label; });
    }
  } catch (error) { stored = false; }

  function store() {
    try { localStorage.setItem(key, JSON.stringify(labels)); stored = true; }
    catch (error) { stored = false; }
  }
  const done = () => labels.filter(label => label).length;
  const firstOpen = () => { const i = labels.indexOf(""); return i < 0 ? labels.length : i; };

  function picture(side, source) {
    const image = find(side + "-image"), gone = find(side + "-gone");
    image.hidden = !source; gone.hidden = Boolean(source);
    if (source) { image.src = source; image.alt = side === "query" ? "query" : "best match"; } else { image.removeAttribute("src"); }
  }

  function show() {
    const count = done(), total = labels.length, over = at >= total;
    find("place").textContent = over ? `${count} of ${total} labelled` : `${at + 1} of ${total}`;
    find("progress").max = total; find("progress").value = count;
    find("progress").textContent = `${count} of ${total}`;
    find("question").hidden = over; find("end").hidden = !over;
    find("unstored").hidden = stored;
    if (!over) {
      picture("query", data.pictures[at][0]); // no names: they often reveal the place
      picture("match", data.pictures[at][1]);
    }
    for (const label of choices) {
      find(label).setAttribute("aria-pressed", String(!over && labels[at] === label));
      find(label).disabled = over;
    }
    find("back").disabled = at === 0;
    find("count").textContent = choices.map((name, i) =>
      `${labels.filter(label => label === name).length} ${["yes", "no", "don’t know"][i]}`).join(", ");
  }

  function answer(label) {
    if (at >= labels.length) { return; }
    labels[at] = label; saved = false; at += 1;
    store(); show();
  }
  function back() { if (at > 0) { at -= 1; show(); } }

  const cell = value => /[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value;
  function text() {
    const rows = data.rows.map(([order, query, match], i) => [String(order), query, match, labels[i]]);
    const lines = [["order", "query", "match", "label"], ...rows].map(row => row.map(cell).join(","));
    return [...data.head, ...lines].join("\r\n") + "\r\n";
  }
  function save() {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text()], { type: "text/csv" }));
    link.download = data.file; document.body.append(link); link.click(); link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    saved = true;
    find("message").textContent = `${done()} labels saved as ${data.file}.`;
  }

  for (const label of choices) { find(label).addEventListener("click", () => answer(label)); }
  find("back").addEventListener("click", back);
  for (const button of document.querySelectorAll(".save")) { button.addEventListener("click", save); }
  document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey) { return; }
    const name = event.key.toLowerCase();
    if (name === "y") { answer("yes"); } else if (name === "n") { answer("no"); }
    else if (name === "u") { answer("unknown"); } else if (name === "s") { save(); }
    else if (["b", "backspace", "arrowleft"].includes(name)) { event.preventDefault(); back(); }
  });
  addEventListener("beforeunload", event => { if (!stored && !saved) { event.preventDefault(); } });
  at = firstOpen(); show();
})();
