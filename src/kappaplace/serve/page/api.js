// Client of the HTTP API: bearer token, retries when the service is busy, short error messages.

const KEY = "kappaplace-token";
const TRIES = 5;

export class ApiError extends Error {
  constructor(words, status) {
    super(words);
    this.status = status;
  }
}

let map = null;
export const useMap = (name) => (map = name);

function urlOf(path, values = {}) {
  const url = new URL(path, location.origin);
  const all = map === null ? values : { map, ...values };
  for (const [name, value] of Object.entries(all)) if (value !== null) url.searchParams.set(name, value);
  return url;
}

let pending = null;

/** Show one dialog, even if several requests were rejected at once. */
function askToken(rejected) {
  pending ??= new Promise((resolve) => {
    const dialog = document.getElementById("token");
    const field = document.getElementById("token-field");
    if (rejected) document.getElementById("token-words").textContent = "The token was not accepted. Try another one.";
    field.value = "";
    dialog.addEventListener("close", () => {
      pending = null;
      if (dialog.returnValue === "ok" && field.value) sessionStorage.setItem(KEY, field.value.trim());
      resolve(dialog.returnValue === "ok" && field.value !== "");
    }, { once: true });
    // Not a submit button, because Enter in the field presses the first submit button.
    document.getElementById("token-cancel").onclick = () => dialog.close("");
    dialog.returnValue = "";
    dialog.showModal();
  });
  return pending;
}

async function request(url, options = {}, busy = () => {}) {
  for (let tries = 1; ; ) {
    const token = sessionStorage.getItem(KEY);
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    let answer;
    try {
      answer = await fetch(url, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("The service cannot be reached. Check your connection, and that the service is running.", 0);
    }
    if (answer.status === 401) {
      // Another request may have received a new token in the meantime.
      if (sessionStorage.getItem(KEY) !== token || (await askToken(Boolean(token)))) continue;
      throw new ApiError("This service requires a token.", 401);
    }
    if (answer.status === 429 && tries < TRIES) {
      const wait = Math.min(Math.max(Number(answer.headers.get("Retry-After")) || 1, 0.2), 30);
      busy(wait, tries);
      await pause(wait * 1000, options.signal);
      tries += 1;
      continue;
    }
    if (!answer.ok) throw new ApiError(await words(answer), answer.status);
    return answer;
  }
}

const pause = (time, signal) =>
  new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, time);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("", "AbortError"));
    });
  });

const PLAIN = {
  413: "This photo is too large for the service. Send a smaller one.",
  415: "This file type is not supported. Send a JPEG, PNG or WebP photo.",
  429: "The service is still busy after several attempts. Try again in a minute.",
};

async function words(answer) {
  try {
    const body = await answer.json();
    const message = body.error?.message ?? body.error ?? body.detail ?? body.message;
    if (typeof message === "string" && message) return message;
  } catch {
    // not JSON: an answer of a proxy
  }
  return PLAIN[answer.status] ?? `The service returned an error (${answer.status}). Try again.`;
}

export const get = async (path, values, signal) => (await request(urlOf(path, values), { signal })).json();

/** Return null if the service does not have it. */
export async function getIfThere(path, values) {
  try {
    return await get(path, values);
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}

export const getBlob = async (path, signal) => (await request(urlOf(path), { signal })).blob();

export async function localize(image, name, values, { signal, busy }) {
  const body = new FormData();
  body.append("image", image, name);
  const fields = map === null ? values : { map, ...values };
  for (const [key, value] of Object.entries(fields)) body.append(key, value);
  return (await request(new URL("/v1/localize", location.origin), { method: "POST", body, signal }, busy)).json();
}
