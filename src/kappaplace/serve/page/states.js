// Messages for loading, progress, errors and empty views.

import { h, say } from "./dom.js";

export function loading(words) {
  say(words);
  return h("div", { class: "state loading" }, h("div", { class: "spinner", "aria-hidden": "true" }), h("p", {}, words));
}

/** A bar with words, a button to cancel, and the photo: an element with set(words, part); part null is unknown. */
export function progress(words, part, cancel = null, photo = null) {
  const text = h("p", {});
  const bar = h("progress", { max: 1, "aria-label": "Progress" });
  const preview = photo?.readable ? h("img", { class: "preview", src: photo.url, alt: `Your photo: ${photo.name}` }) : null;
  const element = h("div", { class: "state sending" }, preview, h("div", { class: "sending-state" }, text, bar, cancel ? h("button", { type: "button", class: "plain", onclick: cancel }, "Cancel") : null));
  element.set = (now, done) => {
    text.textContent = now;
    if (done === null) bar.removeAttribute("value");
    else bar.value = done;
    if (done === null) say(now);
  };
  element.set(words, part);
  return element;
}

/** An error message, with a button to try again if that can help. */
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
