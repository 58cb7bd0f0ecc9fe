// Photos before they are sent: made smaller, and kept for a reload of the page.

const SIDE = 1600; // pixels; models see fewer
const HEAVY = 1.5e6; // bytes; smaller files are sent unchanged
const KEPT_SIDE = 640;
const KEY = "kappaplace-answers";

/** A photo {name, blob, url, readable}; `blob` is smaller than the file if that is large. */
export async function photoOf(file, name) {
  const photo = { name, blob: file, url: URL.createObjectURL(file), readable: true };
  try {
    const bitmap = await createImageBitmap(file); // turned as its EXIF data says
    if (file.size > HEAVY && Math.max(bitmap.width, bitmap.height) > SIDE) photo.blob = await drawn(bitmap, SIDE, 0.92);
    photo.small = await drawn(bitmap, KEPT_SIDE, 0.8);
    bitmap.close();
  } catch {
    photo.readable = false; // HEIC, or not a photo: the service decides
  }
  return photo;
}

function drawn(bitmap, side, quality) {
  const scale = Math.min(1, side / Math.max(bitmap.width, bitmap.height));
  const canvas = new OffscreenCanvas(Math.max(1, Math.round(bitmap.width * scale)), Math.max(1, Math.round(bitmap.height * scale)));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas.convertToBlob({ type: "image/jpeg", quality });
}

const dataUrl = (blob) =>
  new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = reject;
    reader.readAsDataURL(blob);
  });

/** Keep answered photos in this tab, so that a reload shows them again. */
export async function keep(map, version, items, shown) {
  try {
    const done = items.filter((item) => item.answer && item.photo.small);
    const kept = await Promise.all(done.map(async ({ photo, answer }) => ({ name: photo.name, url: await dataUrl(photo.small), answer })));
    if (kept.length) sessionStorage.setItem(KEY, JSON.stringify({ map, version, kept, shown: Math.max(0, done.indexOf(items[shown])) }));
    else forget();
  } catch {
    forget(); // no room: then a reload starts again
  }
}

export const forget = () => sessionStorage.removeItem(KEY);

/** The kept answers of this version of the map: {items, shown}, or null. */
export function kept(map, version) {
  try {
    const found = JSON.parse(sessionStorage.getItem(KEY));
    if (found?.map !== map || found.version !== version) return null;
    const items = found.kept.map(({ name, url, answer }) => ({ photo: { name, url, readable: true }, answer }));
    return { items, shown: found.shown };
  } catch {
    return null;
  }
}
