// Create elements without a framework: h("p", {class: "muted"}, "words", child).

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, values = {}, ...children) {
  return fill(document.createElement(tag), values, children);
}

/** The same for SVG. */
export function s(tag, values = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), values, children);
}

function fill(element, values, children) {
  for (const [name, value] of Object.entries(values)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  // Text becomes a text node, so that file names and messages are never parsed as HTML.
  element.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Announce a message to screen readers. */
export function say(words) {
  document.getElementById("live").textContent = words;
}

const ICONS = {
  accept: ["M5 12.5l4.5 4.5L19 7.5"],
  doubtful: ["M9 9.2a3 3 0 1 1 4.6 2.6c-1 .6-1.6 1.2-1.6 2.4", "M12 17.8v.2"],
  reject: ["M7 7l10 10", "M17 7L7 17"],
  undecided: ["M7 12h10"],
};

/** Icon of a decision; hidden from screen readers, because the word next to it has the same meaning. */
export function icon(decision) {
  const lines = (ICONS[decision] ?? ICONS.undecided).map((d) => s("path", { d }));
  return s("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" }, lines);
}

export const WORDS = { accept: "Accept", doubtful: "Doubtful", reject: "Reject", undecided: "Undecided" };

export function badge(decision) {
  return h("span", { class: `badge ${decision}` }, icon(decision), WORDS[decision]);
}
