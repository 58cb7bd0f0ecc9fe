// The service, as the page sees it: bearer token, patience when it is busy, errors in one sentence.

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

function address(path, values = {}) {
  const url = new URL(path, location.origin);
  const all = map === null ? values : { map, ...values };
  for (const [name, value] of Object.entries(all)) if (value !== null) url.searchParams.set(name, value);
  return url;
}

let asking = null;

/** One dialog, however many requests were refused at once. */
function askToken(wrong) {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById("token");
    const field = document.getElementById("token-field");
    if (wrong) document.getElementById("token-words").textContent = "That token was not accepted. Please try another one.";
    field.value = "";
    dialog.addEventListener("close", () => {
      asking = null;
      if (dialog.returnValue === "ok" && field.value) sessionStorage.setItem(KEY, field.value.trim());
      resolve(dialog.returnValue === "ok" && field.value !== "");
    }, { once: true });
    // Not a submit button: Enter in the field would press the first of those.
    document.getElementById("token-cancel").onclick = () => dialog.close("");
    dialog.returnValue = "";
    dialog.showModal();
  });
  return asking;
}

async function ask(url, options = {}, busy = () => {}) {
  for (let tries = 1; ; ) {
    const token = sessionStorage.getItem(KEY);
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    let answer;
    try {
      answer = await fetch(url, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("The service cannot be reached. Is it still running, and are you online?", 0);
    }
    if (answer.status === 401) {
      // Another request may have been given a new token while this one was on its way.
      if (sessionStorage.getItem(KEY) !== token || (await askToken(Boolean(token)))) continue;
      throw new ApiError("Without a token this service does not answer.", 401);
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
  413: "This photo is larger than the service accepts. Please send a smaller one.",
  415: "This kind of file is not read here. Please send a JPEG, PNG or WebP photo.",
  429: "The service is still busy after several tries. Please try again in a minute.",
};

async function words(answer) {
  try {
    const body = await answer.json();
    const said = body.error?.message ?? body.error ?? body.detail ?? body.message;
    if (typeof said === "string" && said) return said;
  } catch {
    // no JSON: an answer of something between us and the service
  }
  return PLAIN[answer.status] ?? `The service answered with an error (${answer.status}). Please try again.`;
}

export const get = async (path, values, signal) => (await ask(address(path, values), { signal })).json();

/** Null where this service does not have it. */
export async function getIfThere(path, values) {
  try {
    return await get(path, values);
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}

export const getBlob = async (path, signal) => (await ask(address(path), { signal })).blob();

export async function localize(image, name, values, { signal, busy }) {
  const body = new FormData();
  body.append("image", image, name);
  const fields = map === null ? values : { map, ...values };
  for (const [key, value] of Object.entries(fields)) body.append(key, value);
  return (await ask(new URL("/v1/localize", location.origin), { method: "POST", body, signal }, busy)).json();
}
