// Draws each figure from the JSON next to it, in the colors of the theme, when it becomes visible.
"use strict";
(() => {
  const DARK = JSON.parse(document.getElementById("dark-colors").textContent);
  const media = matchMedia("(prefers-color-scheme: dark)");
  // typesetMath is off because plotly would treat the text between two dollar signs as a formula.
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

  // The JSON that was drawn in each figure element; empty if nothing was drawn yet.
  const places = new Map();

  function textOf(place) {
    const data = [...document.querySelectorAll("script.figure-data")].find((each) => each.dataset.for === place.dataset.figure);
    return data ? data.textContent : "";
  }

  // Keyboard and screen reader users have the summary and the data table, so plotly's buttons are not focusable, and its
  // labels are not read out.
  function hideFromKeyboard(place) {
    for (const each of place.children) each.setAttribute("aria-hidden", "true");
    for (const each of place.querySelectorAll("a, button, [tabindex]")) each.tabIndex = -1;
  }

  // On a page about many sessions, a click on a bar opens the list of its sessions. The table has the same links.
  function listOf(place, point) {
    const meta = place.layout?.meta ?? {};
    const query = new URLSearchParams(place.dataset.list);
    const days = meta.days?.[point.x];
    const value = meta.rows?.[point.y];
    const filters = { ...point.data.meta, ...(days && { day_from: days[0], day_to: days[1] }), ...(value != null && { [meta.parameter]: value }) };
    for (const [name, text] of Object.entries(filters)) query.set(name, text);
    return Object.keys(filters).length ? `/?${query}` : null;
  }
  function linkBars(place) {
    place.on("plotly_click", (clicked) => {
      const url = listOf(place, clicked.points[0]);
      if (url) location.assign(url);
    });
    place.on("plotly_hover", (hovered) => place.classList.toggle("opens", listOf(place, hovered.points[0]) !== null));
    place.on("plotly_unhover", () => place.classList.remove("opens"));
  }

  function draw(place, dark) {
    const text = textOf(place);
    const theme = dark ? "dark" : "light";
    if (!text || (places.get(place) === text && place.dataset.drawn === theme)) return;
    const light = JSON.parse(text);
    const figure = dark ? recolored(light) : light;
    // As long as `uirevision` stays the same, plotly keeps the user's zoom and hidden traces.
    Plotly.react(place, figure.data, { ...figure.layout, uirevision: "kept" }, config);
    if (!place.dataset.drawn) place.on("plotly_afterplot", () => hideFromKeyboard(place));
    if (!place.dataset.drawn && place.dataset.list !== undefined) linkBars(place);
    hideFromKeyboard(place);
    places.set(place, text);
    place.dataset.drawn = theme;
    place.dispatchEvent(new CustomEvent("agentobs:drawn", { bubbles: true }));
  }

  const visibility = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      visibility.unobserve(entry.target);
      draw(entry.target, isDark());
    }
  }, { rootMargin: "400px" });

  function watch(root) {
    for (const place of root.querySelectorAll("[data-figure]")) {
      const text = textOf(place);
      const height = text && places.get(place) !== text && JSON.parse(text).layout.height;
      if (height) place.style.minHeight = `${height}px`;
      if (!places.has(place)) places.set(place, "");
      if (places.get(place) !== text) visibility.observe(place);
    }
  }

  // Purge removed figures, because plotly keeps an event listener on the window for each figure.
  function purgeRemoved() {
    for (const place of places.keys()) {
      if (place.isConnected) continue;
      visibility.unobserve(place);
      Plotly.purge(place);
      places.delete(place);
    }
  }

  function redraw(dark) {
    for (const place of document.querySelectorAll("[data-figure][data-drawn]")) draw(place, dark);
  }

  media.addEventListener("change", () => redraw(isDark()));
  new MutationObserver(() => redraw(isDark())).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  addEventListener("beforeprint", () => {
    for (const place of document.querySelectorAll("[data-figure]")) draw(place, false);
  });
  addEventListener("afterprint", () => redraw(isDark()));
  // A replaced region may contain new figures, and new data for existing figures.
  document.addEventListener("agentobs:replaced", (event) => { purgeRemoved(); watch(event.target); });
  watch(document);
})();
