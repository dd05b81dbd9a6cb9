// Draws each figure from the JSON that stands beside it, in the colours of the theme, when it comes into view.
"use strict";
(() => {
  const DARK = JSON.parse(document.getElementById("dark-colours").textContent);
  const media = matchMedia("(prefers-color-scheme: dark)");
  // Two sums in dollars are no formula between them: typesetMath.
  const config = { displaylogo: false, responsive: true, showSendToCloud: false, topojsonURL: "", typesetMath: false,
    modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"] };

  function isDark() {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : media.matches;
  }

  function recoloured(value) {
    if (typeof value === "string") return DARK[value] || value;
    if (Array.isArray(value)) return value.map(recoloured);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, recoloured(inner)]));
    }
    return value;
  }

  function draw(place, dark) {
    const data = [...document.querySelectorAll("script.figure-data")].find((each) => each.dataset.for === place.dataset.figure);
    if (!data) return;
    const told = JSON.parse(data.textContent);
    const figure = dark ? recoloured(told) : told;
    Plotly.react(place, figure.data, figure.layout, config);
    place.dataset.drawn = dark ? "dark" : "light";
  }

  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      seen.unobserve(entry.target);
      draw(entry.target, isDark());
    }
  }, { rootMargin: "400px" });

  function watch(root) {
    for (const place of root.querySelectorAll("[data-figure]")) {
      const data = document.querySelector(`script.figure-data[data-for="${place.dataset.figure}"]`);
      const height = data && JSON.parse(data.textContent).layout.height;
      if (height) place.style.minHeight = `${height}px`;
      seen.observe(place);
    }
  }

  function again(dark) {
    for (const place of document.querySelectorAll("[data-figure][data-drawn]")) draw(place, dark);
  }

  media.addEventListener("change", () => again(isDark()));
  new MutationObserver(() => again(isDark())).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  addEventListener("beforeprint", () => {
    for (const place of document.querySelectorAll("[data-figure]")) draw(place, false);
  });
  addEventListener("afterprint", () => again(isDark()));
  // Regions that are replaced while an agent runs bring new figures.
  document.addEventListener("agentobs:replaced", (event) => watch(event.target));
  watch(document);
})();
