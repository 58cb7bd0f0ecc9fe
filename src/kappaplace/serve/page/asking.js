// Input of photos: drop, paste, files, camera, or a sample image. After a photo it becomes one line.

import { getBlob } from "./api.js";
import { h } from "./dom.js";
import { file } from "./format.js";
import { picture } from "./picture.js";

/** `ask(files)` receives [{blob, name}]; `failed(error)` an error. Returns {element, chip(on)}. */
export function askingPanel(world, ask, failed) {
  const take = (files) => {
    const photos = [...files].map((blob) => ({ blob, name: blob.name || "pasted photo" }));
    if (photos.length) ask(photos);
  };
  const field = (id, values, ...words) => {
    const input = h("input", { id, type: "file", accept: "image/*", class: "unseen-input", ...values });
    input.addEventListener("change", () => {
      take(input.files);
      input.value = ""; // the same photo can be selected again
    });
    return h("div", { class: `field ${id}` }, input, h("label", { class: "drop", for: id }, words));
  };
  const title = h("span", { class: "title" }, "Drop photos here");
  const zone = field("photo", { multiple: true }, title, h("span", { class: "muted hint" }, "paste them, or ", h("span", { class: "link" }, "choose files")));
  const camera = field("camera", { capture: "environment" }, h("span", { class: "title" }, "Take a photo"));
  acceptDrops(zone, take);
  document.addEventListener("paste", (event) => {
    if (zone.isConnected) take([...(event.clipboardData?.files ?? [])]);
  });
  const samples = demos(world, ask, failed);
  const element = h("section", { class: "panel asking", "aria-label": "Your photos" }, h("div", { class: "inputs" }, zone, camera), samples);
  return {
    element,
    chip(on) {
      element.classList.toggle("chip", on);
      title.textContent = on ? "Other photos" : "Drop photos here";
    },
  };
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
    if (zone.isConnected) take(event.dataTransfer.files);
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
      const blob = await getBlob(image);
      if (latest === image) ask([{ blob, name: file(name) }]); // otherwise another one was selected in the meantime
    } catch (error) {
      failed(error);
    }
  };
  const items = world.demo.map(({ name, image }, i) => {
    const button = h("button", { type: "button", class: "demo", "aria-pressed": "false", title: name }, picture(image, `Demo query ${i + 1}`));
    button.addEventListener("click", select(button, image, name));
    return h("li", {}, button);
  });
  return h("details", { class: "samples", open: true }, h("summary", {}, "Or try one of these"), h("ul", { class: "demos" }, items));
}
