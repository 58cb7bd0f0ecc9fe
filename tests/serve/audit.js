// Run inside the page by test_page.py: what a strict reader of WCAG would find. Returns a list of sentences.
() => {
  const found = [];
  const visible = (e) => e.checkVisibility({ opacityProperty: true, visibilityProperty: true }) && e.getClientRects().length > 0;
  const unseen = (e) => e.closest(".unseen, .skip, [aria-hidden=true]");
  const parse = (text) => (text.match(/[\d.]+/g) ?? []).map(Number);
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (e) => {
    for (let at = e; at; at = at.parentElement) {
      const [r, g, b, a = 1] = parse(getComputedStyle(at).backgroundColor);
      if (a === 1) return [r, g, b];
      if (a > 0) found.push(`half transparent ground of ${at.className}`);
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !visible(e) || unseen(e)) continue;
    const svg = e.namespaceURI.endsWith("svg");
    const [r, g, b] = parse(svg ? getComputedStyle(e).fill : getComputedStyle(e).color);
    const [low, high] = [light([r, g, b]), light(ground(svg ? e.ownerSVGElement.parentElement : e))].sort((x, y) => x - y);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < 4.5) found.push(`contrast ${ratio.toFixed(2)}: ${walker.currentNode.textContent.trim().slice(0, 40)}`);
  }
  for (const image of document.images) if (!image.hasAttribute("alt")) found.push(`no alt: ${image.src}`);
  for (const e of document.querySelectorAll("button, a[href], input, select, canvas, svg[role=img]")) {
    if (!visible(e)) continue;
    const label = e.getAttribute("aria-label") || e.textContent.trim() || [...(e.labels ?? [])].map((l) => l.textContent).join("") || e.querySelector("img")?.alt;
    if (!label) found.push(`no name: ${e.outerHTML.slice(0, 80)}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  if (new Set(ids).size !== ids.length) found.push(`an id twice: ${ids}`);
  if (document.querySelectorAll("h1").length !== 1) found.push("not one h1");
  for (const e of document.querySelectorAll("button, nav a, input[type=range], select")) {
    const { width, height } = e.getBoundingClientRect();
    if (visible(e) && Math.min(width, height) < 24) found.push(`too small to press: ${e.outerHTML.slice(0, 60)} ${width}×${height}`);
  }
  if (document.documentElement.scrollWidth > innerWidth) found.push(`wider than the window: ${document.documentElement.scrollWidth}`);
  return found;
};
