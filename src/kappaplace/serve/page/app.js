// Start of the page: select the map and the view.

import { parameter, setParameter, where } from "./address.js";
import { get, getIfThere, useMap } from "./api.js";
import { browsePage } from "./browse.js";
import { h } from "./dom.js";
import { driftPage } from "./drift.js";
import { count } from "./format.js";
import { localizePage } from "./localize.js";
import { habits } from "./reasons.js";
import { empty, loading, problem } from "./states.js";
import { surePage } from "./sure.js";

const PAGES = {
  localize: { title: "Localize", show: localizePage },
  sure: { title: "How reliable is it?", show: surePage },
  browse: { title: "Browse the map", show: browsePage },
  drift: { title: "Have the queries changed?", show: driftPage },
};
const MOST_REFERENCES = 20000; // more would overlap

const main = document.getElementById("main");
const which = document.getElementById("which");
const about = h("span");
let service = null; // answer of /v1/maps
let opening = null; // the map that was selected last
let world = null; // the current map and its data
const views = new Map(); // views that were shown, so that going back keeps their state

const current = () => (where()[0] in PAGES ? where()[0] : "localize");

function show() {
  const name = current();
  document.title = `${PAGES[name].title} · KappaPlace`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (!world) return;
  if (!views.has(name)) views.set(name, world.info.references ? PAGES[name].show(world) : emptyMap());
  if (main.firstChild !== views.get(name)) main.replaceChildren(views.get(name));
}

const emptyMap = () =>
  empty("This map is empty", "There are no images to compare a photo with. Add images, then reload this page.", "kappaplace map add MAP photos/");

async function openMap(name) {
  opening = name;
  useMap(name);
  world = null;
  views.clear();
  main.replaceChildren(loading("Opening the map…"));
  try {
    const [info, { references }, calibration, demo] = await Promise.all([
      get("/v1/map"),
      get("/v1/map/references", { limit: MOST_REFERENCES }),
      get("/v1/map/calibration"),
      getIfThere("/v1/demo/queries"),
    ]);
    if (opening !== name) return; // another map was selected in the meantime
    const tiles = service.tile_url && { url: service.tile_url, attribution: service.tile_attribution };
    world = { info, references, calibration, demo: demo?.queries ?? [], labels: service.labels, tiles, habits: habits(references) };
    about.replaceChildren(`${count(info.references)} references`);
    show();
  } catch (error) {
    if (opening === name) main.replaceChildren(problem(error, () => openMap(name)));
  }
}

function choose(name) {
  setParameter("map", name);
  openMap(name);
}

/** Show the current map, and a list if there are several. */
function offer({ maps }, first) {
  if (maps.length < 2) return which.replaceChildren(h("span", { class: "mapname" }, first), about);
  const options = maps.map((name) => h("option", { value: name, selected: name === first }, name));
  const list = h("select", { id: "map", onchange: () => choose(list.value) }, options);
  which.replaceChildren(h("label", { for: "map" }, "Map"), list, about);
}

async function start() {
  main.replaceChildren(loading("Opening the map…"));
  try {
    service = await get("/v1/maps");
    const name = service.maps.includes(parameter("map")) ? parameter("map") : service.default;
    offer(service, name);
    await openMap(name);
  } catch (error) {
    main.replaceChildren(problem(error, start));
  }
}

addEventListener("hashchange", () => {
  if (location.hash === "#main") return; // the skip link
  if (main.firstChild === views.get(current())) return; // another part of the same view
  show();
  scrollTo(0, 0);
  main.focus({ preventScroll: true });
});
show();
start();
