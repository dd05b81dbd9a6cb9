// What the pages can do beyond links and forms: follow what is new, show times in the reader's zone, keep a theme.
// Without it everything is there; it only comes on request.
"use strict";
(() => {
  const POLL_MS = 2000;
  const TYPING_MS = 350;
  const root = document.documentElement;

  // The theme is set before anything is drawn.
  const kept = { get: (name) => { try { return localStorage.getItem(name); } catch { return null; } },
    set: (name, value) => { try { localStorage.setItem(name, value); } catch { /* a browser that keeps nothing */ } } };
  const applyTheme = (theme) => {
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
    else delete root.dataset.theme;
  };
  applyTheme(kept.get("agentobs-theme"));

  // Times stand in UTC in the page; the title keeps that.
  const local = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "2-digit", day: "2-digit",
    hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
  function localTimes(within) {
    for (const time of within.querySelectorAll("time[datetime]:not([data-local])")) {
      const at = new Date(time.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      const part = Object.fromEntries(local.formatToParts(at).map(({ type, value }) => [type, value]));
      time.title = time.textContent;
      time.textContent = `${part.year}-${part.month}-${part.day} ${part.hour}:${part.minute}:${part.second}`;
      time.dataset.local = "";
    }
  }

  // A region is replaced where it stands: what was open stays open, ticks stay, and the focus and the scrolling, too.
  function keyOf(element, region) {
    if (element.id) return `#${element.id}`;
    const name = element.getAttribute("name");
    if (name) return `${element.tagName}[${name}=${element.getAttribute("value") ?? ""}]`;
    const href = element.getAttribute("href");
    if (href) return `a ${href} ${[...region.querySelectorAll("a")].filter((each) => each.getAttribute("href") === href).indexOf(element)}`;
    return `${element.tagName} ${[...region.querySelectorAll(element.tagName)].indexOf(element)}`;
  }

  function stateOf(region) {
    const open = new Map([...region.querySelectorAll("details")].map((each) => [keyOf(each, region), each.open]));
    const ticked = new Map([...region.querySelectorAll("input[type=checkbox], input[type=radio]")].map((each) => [keyOf(each, region), each.checked]));
    const scrolled = [...region.querySelectorAll(".scroll")].map((each) => [each.scrollLeft, each.scrollTop]);
    const focus = region.contains(document.activeElement) && document.activeElement !== region ? keyOf(document.activeElement, region) : null;
    return { open, ticked, scrolled, focus };
  }

  function restore(region, state) {
    for (const each of region.querySelectorAll("details")) {
      const before = state.open.get(keyOf(each, region));
      if (before !== undefined) each.open = before;
    }
    for (const each of region.querySelectorAll("input[type=checkbox], input[type=radio]")) {
      const before = state.ticked.get(keyOf(each, region));
      if (before !== undefined) each.checked = before;
    }
    [...region.querySelectorAll(".scroll")].forEach((each, at) => {
      if (state.scrolled[at]) [each.scrollLeft, each.scrollTop] = state.scrolled[at];
    });
    if (state.focus) {
      const same = [...region.querySelectorAll("a, button, input, select, textarea, summary, [tabindex]")].find((each) => keyOf(each, region) === state.focus);
      if (same) same.focus({ preventScroll: true });
    }
  }

  // What was drawn stays, with the part that somebody looks at: figures.js draws what is new into it.
  function keepFigures(region, next) {
    const drawn = new Map([...region.querySelectorAll("[data-figure]")].map((each) => [each.dataset.figure, each]));
    for (const place of next.querySelectorAll("[data-figure]")) {
      const kept = drawn.get(place.dataset.figure);
      if (!kept) continue;
      kept.setAttribute("aria-label", place.getAttribute("aria-label") ?? "");
      place.replaceWith(kept);
    }
  }

  function isBusy(region) {
    // Somebody selects text in it, or has a menu open: it waits for the next time.
    const selection = getSelection();
    const selects = selection && !selection.isCollapsed && region.contains(selection.anchorNode);
    return selects || (region.contains(document.activeElement) && document.activeElement.matches("select, textarea, input:not([type=checkbox]):not([type=radio])"));
  }

  function replaceFrom(text) {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    const x = scrollX, y = scrollY;
    let whole = true;
    for (const region of document.querySelectorAll("[data-live][id]")) {
      const next = fresh.getElementById(region.id);
      if (!next) continue;
      if (isBusy(region)) { whole = false; continue; }
      const state = stateOf(region);
      localTimes(next);
      // Compared as sent, so that a region without anything new keeps what was drawn in it.
      const came = next.innerHTML;
      if (shown.get(region.id) === came) continue;
      shown.set(region.id, came);
      region.style.minHeight = `${region.offsetHeight}px`;
      keepFigures(region, next);
      region.replaceChildren(...next.childNodes);
      restore(region, state);
      region.dispatchEvent(new CustomEvent("agentobs:replaced", { bubbles: true }));
      requestAnimationFrame(() => { region.style.minHeight = ""; scrollTo(x, y); });
    }
    const revision = fresh.querySelector("meta[name=agentobs-revision]");
    return { whole, revision: revision && revision.content };
  }
  const shown = new Map();

  async function load(address) {
    const answer = await fetch(address, { headers: { accept: "text/html" }, credentials: "same-origin", cache: "no-store" });
    if (answer.redirected || answer.status === 403) throw new Error("closed");
    return answer.text();
  }

  // Follow: ask which state there is, and fetch this page again where it is another one.
  function follow() {
    const meta = document.querySelector("meta[name=agentobs-revision]");
    const box = document.getElementById("follow");
    const said = document.getElementById("followed");
    if (!meta || !box) return;
    let revision = meta.content;
    let asking = false;
    box.closest("label").hidden = false;
    box.checked = kept.get("agentobs-follow") !== "no";
    box.addEventListener("change", () => { kept.set("agentobs-follow", box.checked ? "yes" : "no"); look(); });
    document.addEventListener("visibilitychange", () => look());

    async function look() {
      if (asking || !box.checked || document.hidden) return;
      asking = true;
      try {
        const answer = await fetch("/revision", { credentials: "same-origin", cache: "no-store" });
        if (answer.status === 403) { said.textContent = "This dashboard was started anew: open its new address."; said.classList.remove("hidden"); box.checked = false; return; }
        const now = String((await answer.json()).revision);
        if (now === revision) return;
        if (!document.querySelector("[data-live]")) { location.reload(); return; }
        const found = replaceFrom(await load(location.href));
        if (found.whole) revision = found.revision ?? now;
      } catch {
        // The server has gone, or comes again: the next time tells.
      } finally {
        asking = false;
      }
    }
    setInterval(look, POLL_MS);
  }

  // Filters take effect while one types; the address says them, so that it can be sent and gone back to.
  function filters() {
    const form = document.getElementById("filters");
    const region = document.getElementById("found");
    if (!form || !region) return;
    let timer = 0;
    let latest = 0;
    const address = () => {
      const asked = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
      return `${form.getAttribute("action")}${[...asked].length ? `?${asked}` : ""}`;
    };
    async function apply(isTyped) {
      const to = address();
      if (to === location.pathname + location.search) return;
      const mine = ++latest;
      try {
        const text = await load(to);
        if (mine !== latest) return;
        history[isTyped ? "replaceState" : "pushState"](null, "", to);
        replaceFrom(text);
      } catch {
        location.assign(to);
      }
    }
    form.addEventListener("input", (event) => {
      clearTimeout(timer);
      const isTyped = event.target.matches("input");
      timer = setTimeout(() => apply(isTyped), isTyped ? TYPING_MS : 0);
    });
    form.addEventListener("submit", (event) => { event.preventDefault(); clearTimeout(timer); apply(false); });
    addEventListener("popstate", () => location.reload());
  }

  function statement() {
    const area = document.getElementById("statement");
    const form = document.getElementById("ask");
    if (area && form) {
      area.addEventListener("keydown", (event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); form.requestSubmit(); }
      });
    }
  }

  function theme() {
    const choice = document.getElementById("theme");
    if (!choice) return;
    choice.closest("label").hidden = false;
    choice.value = root.dataset.theme ?? "";
    choice.addEventListener("change", () => { kept.set("agentobs-theme", choice.value); applyTheme(choice.value); });
  }

  addEventListener("DOMContentLoaded", () => {
    localTimes(document);
    document.addEventListener("agentobs:replaced", (event) => localTimes(event.target));
    theme();
    filters();
    statement();
    follow();
  });
})();
