// Several photos as a filmstrip: each with its state, one of them shown.

import { h, icon, WORDS } from "./dom.js";

/** `show(i)` is called when a photo is selected. Returns {element, paint(items, shown, decisionOf)}. */
export function filmstrip(show) {
  const list = h("ol", { class: "strip-items" });
  const summary = h("p", { class: "muted small", role: "status" });
  const element = h("section", { class: "filmstrip", "aria-label": "Your photos and their answers", hidden: true }, list, summary);

  const frame = (item, i, shown, decision) => {
    const words = item.error ? "failed" : decision ? WORDS[decision] : "waiting";
    const button = h(
      "button",
      { type: "button", class: `film ${item.error ? "failed" : decision ?? "waiting"}`, "aria-pressed": String(i === shown), "aria-label": `Photo ${i + 1}, ${item.photo.name}: ${words}`, onclick: () => show(i) },
      item.photo.readable ? h("img", { src: item.photo.url, alt: "" }) : h("span", { class: "gone" }, "no preview"),
      h("span", { class: "film-sign" }, decision ? icon(decision) : item.error ? "!" : "…"),
    );
    return h("li", {}, button);
  };

  return {
    element,
    paint(items, shown, decisionOf) {
      element.hidden = items.length < 2;
      if (element.hidden) return;
      const focused = [...list.children].findIndex((child) => child.contains(document.activeElement));
      const decisions = items.map((item) => (item.answer ? decisionOf(item.answer) : null));
      list.replaceChildren(...items.map((item, i) => frame(item, i, shown, decisions[i])));
      if (focused >= 0) list.children[focused]?.querySelector("button").focus();
      const counts = Object.entries(WORDS).map(([key, word]) => [word.toLowerCase(), decisions.filter((d) => d === key).length]);
      counts.push(["failed", items.filter((item) => item.error).length], ["waiting", items.filter((item) => !item.answer && !item.error).length]);
      summary.textContent = `${items.length} photos: ${counts.filter(([, n]) => n).map(([word, n]) => `${n} ${word}`).join(", ")}.`;
    },
  };
}
