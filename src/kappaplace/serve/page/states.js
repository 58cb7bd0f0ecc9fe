// Messages for loading, errors and empty views.

import { h, say } from "./dom.js";

export function loading(words) {
  say(words);
  return h("div", { class: "state loading" }, h("div", { class: "spinner", "aria-hidden": "true" }), h("p", {}, words));
}

/** An error message, with a button to try again. */
export function problem(error, again = null) {
  const words = error?.message || "Something went wrong on this page. Reload it.";
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
