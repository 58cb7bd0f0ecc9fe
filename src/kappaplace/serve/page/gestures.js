// Mouse, touch, pen, wheel and keys on a drawing: pan, zoom, pick.

const STEP = 60; // pixels per arrow key
const CLICK = 5; // largest movement of a click in pixels

export function listen(canvas, view, { redraw, pick, home }) {
  const down = new Map();
  let travelled = 0;

  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button > 0) return;
    canvas.setPointerCapture(event.pointerId);
    down.set(event.pointerId, at(event));
    if (down.size === 1) travelled = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = down.get(event.pointerId);
    if (!before) return;
    const now = at(event);
    travelled += Math.hypot(now[0] - before[0], now[1] - before[1]);
    if (down.size === 2) {
      const [other] = [...down].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
      const grown = gap(now, other) / Math.max(gap(before, other), 1);
      view.zoom(grown, (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
    } else if (travelled > CLICK) {
      view.pan(now[0] - before[0], now[1] - before[1]);
    }
    down.set(event.pointerId, now);
    redraw();
  });
  canvas.addEventListener("pointerup", (event) => {
    if (down.has(event.pointerId) && travelled <= CLICK) pick(...at(event));
    down.delete(event.pointerId);
  });
  canvas.addEventListener("pointercancel", (event) => down.delete(event.pointerId));
  canvas.addEventListener("dblclick", (event) => {
    view.zoom(2, ...at(event));
    redraw();
  });
  canvas.addEventListener(
    "wheel",
    (event) => {
      // The wheel scrolls the page as usual; it zooms if the map has the focus, or with Ctrl.
      if (document.activeElement !== canvas && !event.ctrlKey) return;
      event.preventDefault();
      view.zoom(Math.exp(-event.deltaY / 400), ...at(event));
      redraw();
    },
    { passive: false },
  );
  const keys = {
    ArrowLeft: () => view.pan(STEP, 0),
    ArrowRight: () => view.pan(-STEP, 0),
    ArrowUp: () => view.pan(0, STEP),
    ArrowDown: () => view.pan(0, -STEP),
    "+": () => view.zoom(1.5),
    "=": () => view.zoom(1.5),
    "-": () => view.zoom(1 / 1.5),
    0: home,
  };
  canvas.addEventListener("keydown", (event) => {
    const act = keys[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
    redraw();
  });
}

const gap = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]);
