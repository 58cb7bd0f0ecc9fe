// The visible part of the map: metres ↔ pixels. North is up.

const CLOSEST = 60; // pixels per metre

export class View {
  constructor() {
    this.width = this.height = 1;
    this.bounds = { west: 0, south: 0, east: 1, north: 1 };
    this.scale = 1;
    this.x = this.y = 0; // centre of the view
    this.moved = false; // by the user: a new size then keeps the centre
  }

  resize(width, height) {
    this.width = width;
    this.height = height;
    if (!this.moved) this.fit(this.bounds);
  }

  fit(bounds, margin = 34) {
    this.bounds = bounds;
    const wide = Math.max(bounds.east - bounds.west, 10);
    const high = Math.max(bounds.north - bounds.south, 10);
    const room = (size) => Math.max(size - 2 * margin, size / 3);
    this.scale = Math.min(room(this.width) / wide, room(this.height) / high, CLOSEST);
    this.least ??= this.scale;
    this.least = Math.min(this.least, this.scale);
    this.x = (bounds.west + bounds.east) / 2;
    this.y = (bounds.south + bounds.north) / 2;
    this.moved = false;
  }

  /** Keep the map in view; the right margin is wider for the buttons. */
  keepInside(bounds, margin = 34, right = 96) {
    const within = (value, low, high, half) => (low + half < high - half ? Math.min(Math.max(value, low + half), high - half) : (low + high) / 2);
    const beside = margin / this.scale;
    this.x = within(this.x, bounds.west - beside, bounds.east + right / this.scale, this.width / 2 / this.scale);
    this.y = within(this.y, bounds.south - beside, bounds.north + beside, this.height / 2 / this.scale);
  }

  toScreen(x, y) {
    return [this.width / 2 + (x - this.x) * this.scale, this.height / 2 - (y - this.y) * this.scale];
  }

  toMap(px, py) {
    return [this.x + (px - this.width / 2) / this.scale, this.y - (py - this.height / 2) / this.scale];
  }

  pan(dx, dy) {
    this.x -= dx / this.scale;
    this.y += dy / this.scale;
    this.moved = true;
  }

  /** Zoom; the point below the pixel stays there. */
  zoom(factor, px = this.width / 2, py = this.height / 2) {
    const [x, y] = this.toMap(px, py);
    this.scale = Math.min(Math.max(this.scale * factor, this.least / 8), CLOSEST);
    this.x = x - (px - this.width / 2) / this.scale;
    this.y = y + (py - this.height / 2) / this.scale;
    this.moved = true;
  }
}

/** The box around things with a position; null if there is none. */
export function boundsOf(things) {
  let [west, south, east, north] = [Infinity, Infinity, -Infinity, -Infinity];
  for (const { x, y } of things) {
    if (!Number.isFinite(x) || !Number.isFinite(y) || x === null || y === null) continue;
    west = Math.min(west, x);
    east = Math.max(east, x);
    south = Math.min(south, y);
    north = Math.max(north, y);
  }
  return west <= east ? { west, south, east, north } : null;
}

/** A round length that fits into `room` pixels: {metres, pixels}. */
export function scaleBar(scale, room = 110) {
  const most = room / scale;
  const power = 10 ** Math.floor(Math.log10(most));
  const metres = [5, 2, 1].map((n) => n * power).find((n) => n <= most);
  return { metres, pixels: metres * scale };
}
