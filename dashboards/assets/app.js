// What the pages can do beyond links and forms: follow what is new, show times in the reader's zone, keep a theme.
// Without it everything is there; it only comes on request.
"use strict";
(() => {
  const POLL_MS = 2000;
  const TYPING_MS = 350;
  const ANSWER_MS = 15000;
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
      const day = `${part.year}-${part.month}-${part.day}`;
      time.textContent = `${day} ${part.hour}:${part.minute}:${part.second}`;
      // What is found by days, is found by those of UTC.
      const ofUtc = at.toISOString().slice(0, 10);
      if (ofUtc !== day) {
        const other = document.createElement("small");
        other.textContent = ` ${ofUtc} in UTC`;
        time.append(other);
      }
      time.dataset.local = "";
    }
  }

  function zone() {
    const place = document.getElementById("zone");
    if (place) place.textContent = `Times: ${local.resolvedOptions().timeZone}`;
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

  // `isOther`: the text is that of another address, so that nothing of this one may stay.
  function replaceFrom(text, isOther = false) {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    const x = scrollX, y = scrollY;
    let whole = true;
    for (const region of document.querySelectorAll("[data-live][id]")) {
      const next = fresh.getElementById(region.id);
      if (!next) continue;
      if (!isOther && isBusy(region)) { whole = false; continue; }
      const state = stateOf(region);
      localTimes(next);
      // Compared as sent, so that a region without anything new keeps what was drawn in it.
      const came = next.innerHTML;
      if (shown.get(region.id) === came) continue;
      shown.set(region.id, came);
      region.style.minHeight = `${region.offsetHeight}px`;
      if (!isOther) keepFigures(region, next);
      region.replaceChildren(...next.childNodes);
      restore(region, state);
      region.dispatchEvent(new CustomEvent("agentobs:replaced", { bubbles: true }));
      requestAnimationFrame(() => { region.style.minHeight = ""; scrollTo(x, y); });
    }
    const revision = fresh.querySelector("meta[name=agentobs-revision]");
    return { whole, revision: revision && revision.content };
  }
  const shown = new Map();

  // One page is asked for at a time: whoever asks later ends what is under way, so that no answer comes after a newer one.
  let under = new AbortController();
  async function load(address) {
    under.abort();
    const { signal } = under = new AbortController();
    const answer = await fetch(address, { headers: { accept: "text/html" }, credentials: "same-origin", cache: "no-store", signal });
    if (answer.redirected || !answer.ok) throw new Error("the recordings cannot be read");
    const text = await answer.text();
    signal.throwIfAborted();
    return text;
  }
  // How many filters take effect just now: the page is not looked at for what is new meanwhile.
  let applying = 0;

  // Follow: ask which state there is, and fetch this page again where it is another one.
  function follow() {
    const meta = document.querySelector("meta[name=agentobs-revision]");
    const box = document.getElementById("follow");
    const said = document.getElementById("followed");
    if (!meta || !box) return;
    let revision = meta.content;
    let asking = false;
    let upToDate = new Date();
    let told = "";
    box.closest("label").hidden = false;
    box.checked = kept.get("agentobs-follow") !== "no";
    box.addEventListener("change", () => { kept.set("agentobs-follow", box.checked ? "yes" : "no"); look(); });
    document.addEventListener("visibilitychange", () => look());

    // What is said stays until something else is: it is read out each time.
    function tell(text) {
      if (text === told) return;
      told = text;
      said.textContent = text;
      said.classList.toggle("hidden", !text);
    }

    async function revisionNow() {
      try {
        return await fetch("/revision", { credentials: "same-origin", cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) });
      } catch {
        throw new Error("the dashboard does not answer");
      }
    }

    async function look() {
      if (asking || applying || !box.checked || document.hidden) return;
      asking = true;
      try {
        const answer = await revisionNow();
        if (answer.status === 403) { tell("This dashboard was started anew: open its new address."); box.checked = false; return; }
        if (!answer.ok) throw new Error("the recordings cannot be read");
        const now = String((await answer.json()).revision);
        if (now !== revision && !applying) {
          if (!document.querySelector("[data-live]")) { location.reload(); return; }
          const found = replaceFrom(await load(location.href));
          if (found.whole) revision = found.revision ?? now;
        }
        upToDate = new Date();
        tell("");
      } catch (error) {
        // A filter that takes effect ended it: nothing is wrong.
        if (error.name === "AbortError") return;
        const why = error instanceof TypeError ? "the dashboard does not answer" : error.message;
        tell(`Not up to date since ${upToDate.toTimeString().slice(0, 5)}: ${why}.`);
      } finally {
        asking = false;
      }
    }
    setInterval(look, POLL_MS);
  }

  // What a filter found is told to who does not see it.
  function announce() {
    const place = document.getElementById("announced");
    const found = document.querySelector("[data-says]");
    if (place && found) place.textContent = found.dataset.says;
  }

  // Filters take effect while one types; the address says them, so that it can be sent and gone back to.
  function filters() {
    const form = document.getElementById("filters");
    const region = document.getElementById("found");
    if (!form || !region) return;
    let timer = 0;
    const address = () => {
      const asked = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
      return `${form.getAttribute("action")}${[...asked].length ? `?${asked}` : ""}`;
    };
    async function apply(isTyped) {
      const to = address();
      if (to === location.pathname + location.search) return;
      applying += 1;
      try {
        const text = await load(to);
        history[isTyped ? "replaceState" : "pushState"](null, "", to);
        replaceFrom(text, true);
        announce();
      } catch (error) {
        // A later filter ended it; of what went wrong otherwise its page tells.
        if (error.name !== "AbortError") location.assign(to);
      } finally {
        applying -= 1;
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
    zone();
    document.addEventListener("agentobs:replaced", (event) => localTimes(event.target));
    theme();
    filters();
    statement();
    follow();
  });
})();
