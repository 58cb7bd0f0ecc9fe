// Input of photos: drop, paste, select a file, or choose a sample image.

import { getBlob } from "./api.js";
import { h } from "./dom.js";
import { picture } from "./picture.js";
import { file } from "./format.js";

/** `ask(blob, name)` receives every photo, `failed(error)` an error if a file is not a photo. */
export function askingPanel(world, ask, failed) {
  const input = h("input", { id: "photo", type: "file", accept: "image/*", class: "unseen-input" });
  const take = (blob) => {
    if (!blob) return;
    if (blob.type && !blob.type.startsWith("image/")) failed(new Error(`${blob.name || "This"} is not a photo. Choose a JPEG, PNG or WebP image.`));
    else ask(blob, blob.name || "pasted photo");
  };
  input.addEventListener("change", () => {
    take(input.files[0]);
    input.value = ""; // the same photo can be selected again
  });
  const zone = h(
    "label",
    { class: "drop", for: "photo" },
    h("span", { class: "title" }, "Drop a photo here"),
    h("span", { class: "muted" }, "paste it, or ", h("span", { class: "link" }, "choose a file")),
  );
  acceptDrops(zone, take);
  document.addEventListener("paste", (event) => {
    const photo = [...(event.clipboardData?.files ?? [])][0];
    if (photo && zone.isConnected) take(photo);
  });
  return h("section", { class: "panel asking", "aria-label": "Your photo" }, h("div", { class: "field" }, input, zone), demos(world, ask, failed));
}

function acceptDrops(zone, take) {
  // On the whole page, because a photo that is dropped next to the field would replace the page.
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
  let latest = null;
  const select = (button, image, name) => async () => {
    latest = image;
    for (const other of button.parentElement.parentElement.querySelectorAll("[aria-pressed=true]")) other.setAttribute("aria-pressed", "false");
    button.setAttribute("aria-pressed", "true");
    try {
      const photo = await getBlob(image);
      if (latest === image) ask(photo, file(name)); // otherwise another one was selected in the meantime
    } catch (error) {
      failed(error);
    }
  };
  const items = world.demo.map(({ name, image }, i) => {
    const button = h("button", { type: "button", class: "demo", "aria-pressed": "false", title: name }, picture(image, `Demo query ${i + 1}`));
    button.addEventListener("click", select(button, image, name));
    return h("li", {}, button);
  });
  return h("div", {}, h("h2", { class: "small" }, "Or try one of these"), h("ul", { class: "demos" }, items));
}
