// Images of the service. They are fetched, not linked, because an <img> cannot send the bearer token.

import { getBlob } from "./api.js";
import { h } from "./dom.js";

/** A frame that shows the image when it is loaded, or a text if there is none. */
export function picture(path, alt, values = {}) {
  const frame = h("div", { class: "picture waiting", ...values });
  getBlob(path)
    .then((blob) => {
      const image = h("img", { alt, src: URL.createObjectURL(blob), decoding: "async" });
      image.addEventListener("load", () => URL.revokeObjectURL(image.src), { once: true });
      frame.append(image);
    })
    .catch(() => frame.append(h("p", { class: "gone" }, "There is no thumbnail of this image.")))
    .finally(() => frame.classList.remove("waiting"));
  return frame;
}
