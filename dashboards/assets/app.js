// What pages can do in addition to links and forms: live updates, times in the user's time zone, a theme.
// Without this script the pages show the same data, but do not update themselves.
"use strict";
(() => {
  const POLL_MS = 2000;
  const TYPING_MS = 350;
  const RESPONSE_MS = 15000;
  // A filter that takes longer than this shows that it is being applied.
  const BUSY_MS = 200;
  const root = document.documentElement;

  // Set the theme before the page is rendered.
  const settings = { get: (name) => { try { return localStorage.getItem(name); } catch { return null; } },
    set: (name, value) => { try { localStorage.setItem(name, value); } catch { /* the browser stores nothing */ } } };
  const applyTheme = (theme) => {
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
    else delete root.dataset.theme;
  };
  applyTheme(settings.get("agentobs-theme"));

  // Times in the HTML are in UTC; the tooltip still shows the UTC time.
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
      // Show the UTC day if it differs, because filters by day use UTC.
      const utcDay = at.toISOString().slice(0, 10);
      if (utcDay !== day) {
        const note = document.createElement("small");
        note.textContent = ` ${utcDay} in UTC`;
        time.append(note);
      }
      time.dataset.local = "";
    }
  }

  function showTimeZone() {
    const place = document.getElementById("zone");
    if (place) place.textContent = `Times: ${local.resolvedOptions().timeZone}`;
  }

  // Replacing a region keeps its state: open details, selected checkboxes, typed text, the focus, and scroll positions.
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
    const checked = new Map([...region.querySelectorAll("input[type=checkbox], input[type=radio]")].map((each) => [keyOf(each, region), each.checked]));
    const typed = new Map([...region.querySelectorAll("input[type=text][id]")].filter((each) => each.value !== each.defaultValue).map((each) => [each.id, each.value]));
    const scrolled = [...region.querySelectorAll(".scroll")].map((each) => [each.scrollLeft, each.scrollTop]);
    const focus = region.contains(document.activeElement) && document.activeElement !== region ? keyOf(document.activeElement, region) : null;
    return { open, checked, typed, scrolled, focus };
  }

  function restore(region, state) {
    for (const each of region.querySelectorAll("details")) {
      const wasOpen = state.open.get(keyOf(each, region));
      if (wasOpen !== undefined) each.open = wasOpen;
    }
    for (const each of region.querySelectorAll("input[type=checkbox], input[type=radio]")) {
      const wasChecked = state.checked.get(keyOf(each, region));
      if (wasChecked !== undefined) each.checked = wasChecked;
    }
    for (const [id, value] of state.typed) {
      const input = region.querySelector(`#${CSS.escape(id)}`);
      if (input) input.value = value;
    }
    [...region.querySelectorAll(".scroll")].forEach((each, at) => {
      if (state.scrolled[at]) [each.scrollLeft, each.scrollTop] = state.scrolled[at];
    });
    if (state.focus) {
      const focused = [...region.querySelectorAll("a, button, input, select, textarea, summary, [tabindex]")].find((each) => keyOf(each, region) === state.focus);
      if (focused) focused.focus({ preventScroll: true });
    }
  }

  // Keep figures that are already drawn, with their zoom; figures.js then draws the new data into them.
  function keepFigures(region, next) {
    const drawn = new Map([...region.querySelectorAll("[data-figure]")].map((each) => [each.dataset.figure, each]));
    for (const place of next.querySelectorAll("[data-figure]")) {
      const existing = drawn.get(place.dataset.figure);
      if (!existing) continue;
      existing.setAttribute("aria-label", place.getAttribute("aria-label") ?? "");
      place.replaceWith(existing);
    }
  }

  function isBusy(region) {
    // If the user is selecting text or typing in the region, replace it at the next update.
    const selection = getSelection();
    const isSelecting = selection && !selection.isCollapsed && region.contains(selection.anchorNode);
    return isSelecting || (region.contains(document.activeElement) && document.activeElement.matches("select, textarea, input:not([type=checkbox]):not([type=radio])"));
  }

  // `isOtherUrl`: the text is the page of another URL, so nothing of the current page may be kept.
  function replaceFrom(text, isOtherUrl = false) {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    const x = scrollX, y = scrollY;
    let isComplete = true;
    for (const region of document.querySelectorAll("[data-live][id]")) {
      const next = fresh.getElementById(region.id);
      if (!next) continue;
      if (!isOtherUrl && isBusy(region)) { isComplete = false; continue; }
      const state = stateOf(region);
      localTimes(next);
      // Compare the HTML as sent, so that a region without new data keeps its drawn figures.
      const received = next.innerHTML;
      if (shown.get(region.id) === received) continue;
      shown.set(region.id, received);
      region.style.minHeight = `${region.offsetHeight}px`;
      if (!isOtherUrl) keepFigures(region, next);
      region.replaceChildren(...next.childNodes);
      restore(region, state);
      region.dispatchEvent(new CustomEvent("agentobs:replaced", { bubbles: true }));
      requestAnimationFrame(() => { region.style.minHeight = ""; scrollTo(x, y); });
    }
    const revision = fresh.querySelector("meta[name=agentobs-revision]");
    return { isComplete, revision: revision && revision.content };
  }
  // The HTML of each region as last received.
  const shown = new Map();
  document.addEventListener("readystatechange", () => {
    if (document.readyState !== "interactive") return;
    // Other scripts did not change the page yet.
    localTimes(document);
    for (const region of document.querySelectorAll("[data-live][id]")) shown.set(region.id, region.innerHTML);
  });

  // Load one page at a time: a later request aborts the earlier one, so an old response never replaces a newer one.
  let pageRequest = new AbortController();
  async function load(url) {
    pageRequest.abort();
    const { signal } = pageRequest = new AbortController();
    const response = await fetch(url, { headers: { accept: "text/html" }, credentials: "same-origin", cache: "no-store", signal });
    if (response.redirected || !response.ok) throw new Error("the recordings cannot be read");
    const text = await response.text();
    signal.throwIfAborted();
    return text;
  }
  // The number of filters that are being applied. Live updates pause meanwhile.
  let applying = 0;

  // Live updates: the server sends the current revision and its age; this page is loaded again if the revision changed.
  // If the connection breaks, the revision is requested instead.
  function followUpdates() {
    const meta = document.querySelector("meta[name=agentobs-revision]");
    const box = document.getElementById("follow");
    const status = document.getElementById("followed");
    const age = document.getElementById("as-of");
    if (!meta || !box) return;
    let revision = meta.content;
    let isChecking = false;
    let isReloading = false;
    let upToDate = new Date();
    let confirmed = Date.now();
    let announced = "";
    let events = null;
    box.closest("label").hidden = false;
    box.checked = settings.get("agentobs-follow") !== "no";
    box.addEventListener("change", () => { settings.set("agentobs-follow", box.checked ? "yes" : "no"); listen(); check(); });
    document.addEventListener("visibilitychange", () => { listen(); check(); });

    // Set the text only if it changed, because screen readers announce it each time it is set.
    function showStatus(text) {
      if (text === announced) return;
      announced = text;
      status.textContent = text;
      status.classList.toggle("hidden", !text);
    }
    // Not a live region: a screen reader would read each second.
    function showAge() {
      const seconds = Math.max(Math.round((Date.now() - confirmed) / 1000), 0);
      if (age) age.textContent = `as of ${seconds < 120 ? `${seconds} s` : `${Math.round(seconds / 60)} min`} ago`;
    }

    // A hidden page does not listen, because browsers allow only six connections to a server.
    function listen() {
      const isWanted = box.checked && !document.hidden;
      if (!isWanted) { events?.close(); events = null; return; }
      if (events && events.readyState !== EventSource.CLOSED) return;
      events = new EventSource("/updates");
      events.addEventListener("message", (event) => {
        const state = JSON.parse(event.data);
        update(String(state.revision), Date.now() - state.age_ms);
      });
    }

    async function requestRevision() {
      try {
        return await fetch("/revision", { credentials: "same-origin", cache: "no-store", signal: AbortSignal.timeout(RESPONSE_MS) });
      } catch {
        throw new Error("the dashboard does not respond");
      }
    }

    // Show a revision. `at`: the time at which the server confirmed it.
    async function show(now, at) {
      if (now !== revision && !applying) {
        if (!document.querySelector("[data-live]")) {
          // A second reload would abort the first one.
          if (!isReloading) location.reload();
          isReloading = true;
          return;
        }
        const found = replaceFrom(await load(location.href));
        if (found.isComplete) revision = found.revision ?? now;
      }
      upToDate = new Date();
      confirmed = Math.max(confirmed, at);
      showStatus("");
      showAge();
    }
    async function attempt(action) {
      if (isChecking || applying || !box.checked || document.hidden) return;
      isChecking = true;
      try {
        await action();
      } catch (error) {
        // A filter that is being applied aborted the request; this is not an error.
        if (error.name === "AbortError") return;
        const reason = error instanceof TypeError ? "the dashboard does not respond" : error.message;
        showStatus(`Not up to date since ${upToDate.toTimeString().slice(0, 5)}: ${reason}.`);
      } finally {
        isChecking = false;
      }
    }
    const update = (now, at) => attempt(() => show(now, at));
    // A dashboard that was restarted accepts neither the old cookie (403) nor the old host name (421).
    const check = () => attempt(async () => {
      const at = Date.now();
      const response = await requestRevision();
      if (response.status === 403 || response.status === 421) { showStatus("The dashboard was restarted: open the new URL that it printed."); box.checked = false; listen(); return; }
      if (!response.ok) throw new Error("the recordings cannot be read");
      await show(String((await response.json()).revision), at);
    });
    listen();
    setInterval(() => { listen(); if (events?.readyState !== EventSource.OPEN) check(); }, POLL_MS);
    setInterval(showAge, 1000);
    showAge();
  }

  // Announce the result of a filter to screen readers.
  function announce() {
    const place = document.getElementById("announced");
    const found = document.querySelector("[data-announcement]");
    if (place && found) place.textContent = found.dataset.announcement;
  }

  // The old list is dimmed while the new one is loaded.
  function showBusy(region, isBusy) {
    if (isBusy) document.getElementById("announced").textContent = "searching …";
    region.setAttribute("aria-busy", String(isBusy));
  }

  // A list that fits into the width of the window scrolls with the page, below a header that stays. A wider one scrolls in
  // its own region, which states at its lower edge how many sessions follow.
  function setUpListScroll() {
    const region = document.getElementById("found");
    if (!region) return;
    const update = () => {
      const list = document.getElementById("list"), below = document.getElementById("rows-below");
      if (!list || !below) return;
      list.classList.toggle("whole", list.scrollWidth <= list.clientWidth);
      const edge = list.getBoundingClientRect().top + list.clientHeight;
      const rows = [...list.querySelectorAll("tbody tr")].filter((each) => each.getBoundingClientRect().bottom > edge + 1).length;
      below.hidden = !rows;
      below.firstElementChild.textContent = `▾ ${rows} more below`;
    };
    // Scroll events do not bubble, and the list is replaced by live updates.
    region.addEventListener("scroll", update, true);
    region.addEventListener("agentobs:replaced", update);
    addEventListener("resize", update);
    update();
  }

  // Filters are applied while the user types. The URL contains them, so it can be shared, and Back works.
  function setUpFilters() {
    const form = document.getElementById("filters");
    const region = document.getElementById("found");
    if (!form || !region) return;
    let timer = 0;
    // The query string of the URL that is shown.
    let shownSearch = location.search;
    const filteredUrl = () => {
      const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
      return `${form.getAttribute("action")}${[...query].length ? `?${query}` : ""}`;
    };
    async function apply(isTyped) {
      const url = filteredUrl();
      if (url === location.pathname + location.search) {
        // The filter of this URL was set again while another one was being applied.
        if (applying) pageRequest.abort();
        return;
      }
      applying += 1;
      const busy = setTimeout(() => showBusy(region, true), BUSY_MS);
      try {
        const text = await load(url);
        history[isTyped ? "replaceState" : "pushState"](null, "", url);
        shownSearch = location.search;
        replaceFrom(text, true);
      } catch (error) {
        // Ignore an abort by a later filter. For any other error, open the page, which shows the error.
        if (error.name !== "AbortError") location.assign(url);
      } finally {
        applying -= 1;
        clearTimeout(busy);
        if (!applying) { showBusy(region, false); announce(); }
      }
    }
    form.addEventListener("input", (event) => {
      clearTimeout(timer);
      const isTyped = event.target.matches("input");
      timer = setTimeout(() => apply(isTyped), isTyped ? TYPING_MS : 0);
    });
    form.addEventListener("submit", (event) => { event.preventDefault(); clearTimeout(timer); apply(false); });
    // A link to a part of the page changes only the fragment.
    addEventListener("popstate", () => { if (location.search !== shownSearch) location.reload(); });
  }

  // Keys of the list: j and k focus the link of the next and the previous session, and / focuses the search.
  function setUpListKeys() {
    const region = document.getElementById("found");
    const search = document.querySelector("#filters input[type=search]");
    if (!region || !search) return;
    document.addEventListener("keydown", (event) => {
      const at = document.activeElement;
      const isTyping = at && at.matches("input:not([type=checkbox]), textarea, select");
      if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "/") { event.preventDefault(); search.focus(); search.select(); return; }
      if (event.key !== "j" && event.key !== "k") return;
      const links = [...region.querySelectorAll("td.session .row-name > a")];
      if (!links.length) return;
      event.preventDefault();
      const row = at ? at.closest("tbody tr") : null;
      const place = links.findIndex((each) => each.closest("tr") === row);
      const next = place < 0 ? 0 : Math.min(Math.max(place + (event.key === "j" ? 1 : -1), 0), links.length - 1);
      links[next].focus();
      links[next].closest("tr").scrollIntoView({ block: "nearest" });
    });
  }

  function setUpStatement() {
    const area = document.getElementById("statement");
    const form = document.getElementById("query-form");
    if (area && form) {
      area.addEventListener("keydown", (event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); form.requestSubmit(); }
      });
      // Enter in the field of the name saves the query; without this, it would run it.
      const saving = form.querySelector("#save-query");
      saving?.querySelector("input").addEventListener("keydown", (event) => {
        if (event.key === "Enter") { event.preventDefault(); form.requestSubmit(saving.querySelector("button")); }
      });
    }
  }

  // A menu closes with Escape, and when another part of the page is clicked or focused.
  function setUpMenus() {
    const open = () => document.querySelectorAll("details.menu[open]");
    addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      for (const menu of open()) { menu.open = false; menu.querySelector("summary").focus(); }
    });
    for (const kind of ["pointerdown", "focusin"]) {
      addEventListener(kind, (event) => { for (const menu of open()) if (!menu.contains(event.target)) menu.open = false; });
    }
  }

  function setUpTheme() {
    const choice = document.getElementById("theme");
    if (!choice) return;
    choice.closest("label").hidden = false;
    choice.value = root.dataset.theme ?? "";
    choice.addEventListener("change", () => { settings.set("agentobs-theme", choice.value); applyTheme(choice.value); });
  }

  // Buttons that copy a text or a link. Without this script, they are hidden.
  function setUpCopying() {
    document.addEventListener("click", (event) => {
      const button = event.target.closest("[data-copy], [data-copy-link]");
      if (!button) return;
      const text = button.dataset.copy ?? new URL(button.dataset.copyLink, location.href).href;
      navigator.clipboard.writeText(text).then(() => { button.textContent = "Copied"; }, () => { button.textContent = "Not copied"; });
    });
    const show = (within) => { for (const each of within.querySelectorAll("[data-copy], [data-copy-link]")) each.hidden = false; };
    show(document);
    document.addEventListener("agentobs:replaced", (event) => show(event.target));
    document.addEventListener("agentobs:part", (event) => show(event.detail));
    document.addEventListener("agentobs:step", (event) => show(event.detail));
  }

  addEventListener("DOMContentLoaded", () => {
    localTimes(document);
    setUpCopying();
    showTimeZone();
    document.addEventListener("agentobs:replaced", (event) => localTimes(event.target));
    document.addEventListener("agentobs:part", (event) => localTimes(event.detail));
    setUpTheme();
    setUpMenus();
    setUpFilters();
    setUpListKeys();
    setUpListScroll();
    setUpStatement();
    followUpdates();
  });
})();
