// The state of the page in its URL: ?map=NAME&risk=0.05#browse/ID.

/** A value of the query part; null if it is missing. */
export const parameter = (name) => new URLSearchParams(location.search).get(name);

export function setParameter(name, value) {
  const url = new URL(location.href);
  if (value === null) url.searchParams.delete(name);
  else url.searchParams.set(name, value);
  history.replaceState(null, "", url);
}

/** View and part of the hash, such as ["browse", "31"]. */
export const where = () => location.hash.slice(1).split("/");

export const setPart = (view, part) => history.replaceState(null, "", part === null ? `#${view}` : `#${view}/${part}`);
