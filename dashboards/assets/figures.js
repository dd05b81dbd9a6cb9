// Draws each figure from the JSON that stands beside it, in the colors of the theme, when it comes into view.
"use strict";
(() => {
  const DARK = JSON.parse(document.getElementById("dark-colors").textContent);
  const media = matchMedia("(prefers-color-scheme: dark)");
  // Two sums in dollars are no formula between them: typesetMath.
  const config = { displaylogo: false, responsive: true, showSendToCloud: false, topojsonURL: "", typesetMath: false,
    modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"] };

  function isDark() {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : media.matches;
  }

  function recolored(value) {
    if (typeof value === "string") return DARK[value] || value;
    if (Array.isArray(value)) return value.map(recolored);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, recolored(inner)]));
    }
    return value;
  }

  // Each place of a figure, with the JSON that was drawn there; empty before anything was.
  const places = new Map();

  function textOf(place) {
    const data = [...document.querySelectorAll("script.figure-data")].find((each) => each.dataset.for === place.dataset.figure);
    return data ? data.textContent : "";
  }

  // The keyboard and the ear have the sentence and the table of numbers: no stop in each of forty buttons, no ticks read out.
  function leaveToMouse(place) {
    for (const each of place.children) each.setAttribute("aria-hidden", "true");
    for (const each of place.querySelectorAll("a, button, [tabindex]")) each.tabIndex = -1;
  }

  function draw(place, dark) {
    const text = textOf(place);
    const theme = dark ? "dark" : "light";
    if (!text || (places.get(place) === text && place.dataset.drawn === theme)) return;
    const told = JSON.parse(text);
    const figure = dark ? recolored(told) : told;
    // While this word is the same, plotly keeps the part that somebody zoomed to, and what they hid.
    Plotly.react(place, figure.data, { ...figure.layout, uirevision: "kept" }, config);
    if (!place.dataset.drawn) place.on("plotly_afterplot", () => leaveToMouse(place));
    leaveToMouse(place);
    places.set(place, text);
    place.dataset.drawn = theme;
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
      const text = textOf(place);
      const height = text && places.get(place) !== text && JSON.parse(text).layout.height;
      if (height) place.style.minHeight = `${height}px`;
      if (!places.has(place)) places.set(place, "");
      if (places.get(place) !== text) seen.observe(place);
    }
  }

  // Plotly listens at the window for each figure until it is told that the figure has gone.
  function forget() {
    for (const place of places.keys()) {
      if (place.isConnected) continue;
      seen.unobserve(place);
      Plotly.purge(place);
      places.delete(place);
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
  // Regions that are replaced while an agent runs bring new figures, and what is new in those that stay.
  document.addEventListener("agentobs:replaced", (event) => { forget(); watch(event.target); });
  watch(document);
})();
