// What is shown while something is missing: waiting, wrong, or empty.

import { h, say } from "./dom.js";

export function loading(words) {
  say(words);
  return h("div", { class: "state loading" }, h("div", { class: "spinner", "aria-hidden": "true" }), h("p", {}, words));
}

/** One sentence of what went wrong, and a way on. */
export function problem(error, again = null) {
  const words = error?.message || "Something went wrong on this page. Please load it again.";
  return h(
    "div",
    { class: "state problem", role: "alert" },
    h("p", { class: "title" }, "That did not work"),
    h("p", {}, words),
    again ? h("button", { type: "button", class: "main", onclick: again }, "Try again") : null,
  );
}

export function empty(title, words, command = "") {
  return h(
    "div",
    { class: "state empty" },
    h("p", { class: "title" }, title),
    h("p", {}, words),
    command ? h("pre", {}, h("code", {}, command)) : null,
  );
}
