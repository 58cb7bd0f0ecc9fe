// Ways to give a photo: drop it, paste it, pick it, or take one of the demo's.

import { getBlob } from "./api.js";
import { h } from "./dom.js";
import { picture } from "./picture.js";
import { file } from "./format.js";

/** `ask(blob, name)` hears of every photo, `failed(error)` of what cannot be one. */
export function askingPanel(world, ask, failed) {
  const input = h("input", { id: "photo", type: "file", accept: "image/*", class: "unseen-input" });
  const take = (blob) => {
    if (!blob) return;
    if (blob.type && !blob.type.startsWith("image/")) failed(new Error(`${blob.name || "This"} is not a photo. Please choose a JPEG, PNG or WebP image.`));
    else ask(blob, blob.name || "pasted photo");
  };
  input.addEventListener("change", () => {
    take(input.files[0]);
    input.value = ""; // the same photo may be chosen again
  });
  const zone = h(
    "label",
    { class: "drop", for: "photo" },
    h("span", { class: "title" }, "Drop a photo here"),
    h("span", { class: "muted" }, "paste it, or ", h("span", { class: "link" }, "choose a file")),
  );
  acceptDrops(zone, take);
  document.addEventListener("paste", (event) => {
    const found = [...(event.clipboardData?.files ?? [])][0];
    if (found && zone.isConnected) take(found);
  });
  return h("section", { class: "panel asking", "aria-label": "Your photo" }, h("div", { class: "field" }, input, zone), demos(world, ask, failed));
}

function acceptDrops(zone, take) {
  // Anywhere on the page: a photo dropped beside the field would otherwise replace the page.
  addEventListener("dragover", (event) => {
    event.preventDefault();
    zone.classList.add("over");
  });
  addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) zone.classList.remove("over");
  });
  addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    if (zone.isConnected) take(event.dataTransfer.files[0]);
  });
}

function demos(world, ask, failed) {
  if (!world.demo.length) return null;
  let wanted = null;
  const chosen = (button, image, name) => async () => {
    wanted = image;
    for (const other of button.parentElement.parentElement.querySelectorAll("[aria-pressed=true]")) other.setAttribute("aria-pressed", "false");
    button.setAttribute("aria-pressed", "true");
    try {
      const photo = await getBlob(image);
      if (wanted === image) ask(photo, file(name)); // else another one was chosen meanwhile
    } catch (error) {
      failed(error);
    }
  };
  const items = world.demo.map(({ name, image }, i) => {
    const button = h("button", { type: "button", class: "demo", "aria-pressed": "false", title: name }, picture(image, `Demo query ${i + 1}`));
    button.addEventListener("click", chosen(button, image, name));
    return h("li", {}, button);
  });
  return h("div", {}, h("h2", { class: "small" }, "Or try one of these"), h("ul", { class: "demos" }, items));
}
