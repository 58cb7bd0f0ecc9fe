// Numbers for people.

const whole = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en-GB", { maximumSignificantDigits: 3 });
const tenth = new Intl.NumberFormat("en-GB", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

export const known = (value) => typeof value === "number" && Number.isFinite(value);

export const count = (value) => (known(value) ? whole.format(value) : "–");
export const number = (value) => (known(value) ? short.format(value) : "–");
export const metres = (value) => {
  if (!known(value)) return "–";
  return value >= 9999.5 ? `${short.format(value / 1000)} km` : `${value >= 100 ? whole.format(value) : tenth.format(value)} m`;
};
export const similarity = (value) => (known(value) ? value.toFixed(3) : "–");
export const seconds = (value) => (value < 1 ? `${Math.max(1, Math.round(value * 1000))} ms` : `${tenth.format(value)} s`);

/** 0.97 → "97%"; what is not certain is never shown as 0% or 100%. */
export function percent(value) {
  if (!known(value)) return "–";
  const shown = 100 * value;
  if (shown > 0 && shown < 0.1) return "< 0.1%";
  if (shown < 100 && shown > 99.9) return "> 99.9%";
  const digits = (shown > 0 && shown < 10) || (shown > 99 && shown < 100) ? 1 : 0;
  return `${shown.toFixed(digits).replace(/\.0$/, "")}%`;
}

/** Convert a number; JSON has no infinity, so it is text. */
export function real(value) {
  if (value === "inf" || value === "Infinity") return Infinity;
  if (value === "-inf" || value === "-Infinity") return -Infinity;
  return typeof value === "number" ? value : null;
}

/** Value below which a fraction of the sorted numbers is. */
export function quantile(sorted, fraction) {
  if (!sorted.length) return null;
  const at = fraction * (sorted.length - 1);
  const low = Math.floor(at);
  return sorted[low] + (at - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
}

/** Fraction of the sorted numbers below a value. */
export function rank(sorted, value) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return sorted.length ? low / sorted.length : 0;
}

export const distance = (a, b) => Math.hypot(a.x - b.x, a.y - b.y);
export const placed = (thing) => Boolean(thing) && known(thing.x) && known(thing.y);
export const file = (name) => String(name).split("/").pop();
