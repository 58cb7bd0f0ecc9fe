// Names and keyboard access that the theme leaves out; the theme adds code buttons and table boxes after loading.
function complete() {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  document.querySelectorAll(".md-code__nav").forEach((nav, index) => {
    nav.setAttribute("aria-label", `Code block ${index + 1}`);
  });
  document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code").forEach((box) => {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  });
}

new MutationObserver(complete).observe(document.body, { childList: true, subtree: true });
addEventListener("resize", complete);
complete();
