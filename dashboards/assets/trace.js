// The tree of a session: selecting, expanding and filtering steps without loading the page again. The selected step is in
// the URL. Without this script, the links and the form in the tree do the same with a page load.
"use strict";
(() => {
  const TYPING_MS = 250;
  // The time limit for a step or a part of the tree, after which the dashboard counts as not responding.
  const RESPONSE_MS = 30000;
  // The height of the rows above the step that is selected first, in pixels: three rows.
  const ABOVE = 72;
  const trace = document.getElementById("trace");

  if (!trace) return;

  const base = trace.dataset.session;
  const tree = document.getElementById("tree");
  const step = document.getElementById("step");
  const form = document.getElementById("tree-filter");
  const summary = document.getElementById("tree-summary");
  const links = document.getElementById("failure-links");
  const items = () => [...tree.querySelectorAll("[role=treeitem]")];
  const visible = () => items().filter((each) => !each.hidden);
  const itemOf = (id) => items().find((each) => each.dataset.step === id);
  const levelOf = (item) => Number(item.getAttribute("aria-level"));
  // The steps that the user expanded (true) or collapsed (false). A region that is replaced gets them back.
  const changed = new Map();

  const isContentShown = () => document.documentElement.hasAttribute("data-content-shown");
  const rowsAdded = () => document.dispatchEvent(new CustomEvent("agentobs:rows"));
  async function part(path, signal, body = null) {
    const content = body && { method: "POST", body, headers: { "x-agentobs": "part" } };
    const late = AbortSignal.timeout(RESPONSE_MS);
    let response, text;
    try {
      response = await fetch(`${base}/${path}`, { credentials: "same-origin", cache: "no-store", signal: signal ? AbortSignal.any([signal, late]) : late, ...content });
      text = await response.text();
    } catch (error) {
      throw signal?.aborted ? error : new Error("the dashboard does not respond");
    }
    if (response.redirected || !response.ok) {
      throw Object.assign(new Error(`the server responded with status ${response.status}`), { status: response.status });
    }
    const place = document.createElement("template");
    // The server escaped all text in it.
    place.innerHTML = text;
    document.dispatchEvent(new CustomEvent("agentobs:part", { detail: place.content }));
    return place.content;
  }

  // Only one item of the tree is a Tab stop; the arrow keys move among the items.
  function setTabStop(item) {
    for (const each of items()) each.tabIndex = each === item ? 0 : -1;
  }
  const tabStop = () => items().find((each) => each.tabIndex === 0);
  function resetTabStop() {
    const chosen = tree.querySelector("[aria-selected=true]");
    setTabStop(chosen && !chosen.hidden ? chosen : visible()[0]);
  }

  function below(item) {
    const found = [], level = levelOf(item);
    for (let at = item.nextElementSibling; at && levelOf(at) > level; at = at.nextElementSibling) found.push(at);
    return found;
  }
  function parentOf(item) {
    const level = levelOf(item);
    let at = item.previousElementSibling;
    while (at && levelOf(at) >= level) at = at.previousElementSibling;
    return at;
  }
  // Hide the descendants of collapsed items.
  function showExpanded(item) {
    let hiddenFrom = Infinity;
    for (const each of below(item)) {
      if (levelOf(each) <= hiddenFrom) hiddenFrom = Infinity;
      each.hidden = hiddenFrom < Infinity;
      if (!each.hidden && each.getAttribute("aria-expanded") === "false") hiddenFrom = levelOf(each);
    }
  }
  async function setExpanded(item, isExpanded) {
    if (!item.hasAttribute("aria-expanded")) return;
    changed.set(item.dataset.step, isExpanded);
    item.setAttribute("aria-expanded", String(isExpanded));
    if (!isExpanded) { for (const each of below(item)) each.hidden = true; resetTabStopTo(item); return; }
    if (!below(item).length) {
      let found;
      try { found = await part(`tree?under=${encodeURIComponent(item.dataset.step)}`); } catch (error) {
        changed.delete(item.dataset.step);
        item.setAttribute("aria-expanded", "false");
        showProblem(error);
        return;
      }
      if (below(item).length) return;
      for (const each of found.querySelectorAll("[role=treeitem]")) each.tabIndex = -1;
      item.after(found);
      markSelected(selectedId());
    }
    showExpanded(item);
    rowsAdded();
  }
  function resetTabStopTo(item) { if (!tabStop() || tabStop().hidden) setTabStop(item); }

  const selectedId = () => step.querySelector(".step-head")?.dataset.step ?? null;
  function markSelected(id) {
    for (const each of tree.querySelectorAll("[aria-selected=true]")) each.setAttribute("aria-selected", "false");
    const item = id && itemOf(id);
    if (!item) return null;
    item.setAttribute("aria-selected", "true");
    for (let at = parentOf(item); at; at = parentOf(at)) if (at.getAttribute("aria-expanded") === "false") { at.setAttribute("aria-expanded", "true"); showExpanded(at); }
    setTabStop(item);
    return item;
  }

  // Above the details; the next selected step replaces it.
  function showProblem(error) {
    const message = document.createElement("p");
    message.className = "warning";
    message.setAttribute("role", "alert");
    message.textContent = `Could not be shown: ${error.message}.`;
    step.querySelector("[role=alert]")?.remove();
    step.prepend(message);
  }

  // The fields of the filter that have a value.
  const filters = () => new URLSearchParams([...new FormData(form)].filter(([, value]) => value.trim()));

  // Show a step: in the details, in the tree, in the waterfall and in the URL. A later selection aborts an earlier one.
  // `write`: the method of the history that changes the URL, if any. `until`: other signals that abort the selection.
  // `isAutomatic`: the user did not select the step; `selections` counts the steps that the user did select.
  let request = new AbortController();
  // The query string of the URL that is shown.
  let shownSearch = location.search;
  let selections = 0;
  async function select(query, { write = "pushState", focus = false, until = [], isAutomatic = false } = {}) {
    if (!isAutomatic) selections += 1;
    request.abort();
    request = new AbortController();
    const signal = AbortSignal.any([request.signal, ...until]);
    try {
      const found = await part(`step?${query}`, signal);
      const failures = found.querySelector("#new-failures");
      if (failures) { links.replaceChildren(failures.content); failures.remove(); }
      step.replaceChildren(found);
      step.scrollTop = 0;
      const id = selectedId();
      if (write && id) {
        const url = new URL(location.href);
        url.searchParams.set("step", id);
        url.hash = "";
        history[write](null, "", url);
        shownSearch = location.search;
      }
      let item = markSelected(id);
      if (!item && id && !filters().size) {
        // The way to this step is collapsed and was not loaded yet.
        const fresh = await part(`tree?step=${encodeURIComponent(id)}`, signal);
        // A filter that was set meanwhile shows only its matches.
        if (!filters().size) { tree.replaceChildren(fresh); item = markSelected(id); rowsAdded(); }
      }
      if (item) { item.scrollIntoView({ block: "nearest" }); if (focus) item.focus(); }
      markBar(Number(step.querySelector(".step-head")?.dataset.number));
      markTurn();
      document.dispatchEvent(new CustomEvent("agentobs:step", { detail: step }));
    } catch (error) {
      if (error.name === "AbortError") return;
      // Without a response, a page load would only replace this page by an error of the browser. A dashboard that is
      // ending responds with 503.
      if (!error.status || error.status >= 500) showProblem(error);
      else if (write) location.assign(`${base}?${query}`);
    }
  }
  const selectStep = (id, options) => select(`step=${encodeURIComponent(id)}`, options);

  // The field "Turn" has the turn and the agent of the selected step.
  const toTurn = trace.querySelector(".to-turn");
  function markTurn() {
    const head = step.querySelector(".step-head");
    if (!toTurn || !head?.dataset.turn) return;
    const agents = toTurn.elements.agent, lane = head.dataset.lane;
    if (agents && ![...agents.options].some((each) => each.value === lane)) return;
    if (agents) agents.value = lane;
    toTurn.elements.turn.value = head.dataset.turn;
  }
  toTurn?.elements.turn.addEventListener("focus", (event) => event.target.select());

  // Bars of the waterfall contain the numbers of their steps after a count.
  function markBar(number) {
    const place = document.querySelector("[data-figure=waterfall][data-drawn]");
    if (!place) return;
    let bar = null;
    if (Number.isInteger(number)) {
      for (const data of place.data) {
        const at = (data.customdata ?? []).findIndex((each) => Array.isArray(each) && each.indexOf(number, 1) > 0);
        if (at >= 0) { bar = { x0: data.base[at], x1: data.base[at] + data.x[at], y: data.y[at] }; break; }
      }
    }
    const shapes = (place.layout.shapes ?? []).filter((each) => each.name !== "selected");
    const style = getComputedStyle(document.documentElement);
    if (bar) shapes.push({ name: "selected", type: "rect", x0: bar.x0, x1: bar.x1, y0: bar.y - 0.5, y1: bar.y + 0.5, line: { color: style.getPropertyValue("--focus").trim(), width: 3 } });
    Plotly.relayout(place, { shapes });
  }
  const selectedNumber = () => Number(step.querySelector(".step-head")?.dataset.number ?? NaN);
  document.addEventListener("agentobs:drawn", (event) => {
    const place = event.target;
    if (place.dataset.figure !== "waterfall") return;
    markBar(selectedNumber());
    if (place.dataset.clickable) return;
    place.dataset.clickable = "yes";
    place.on("plotly_click", (clicked) => {
      const numbers = clicked.points[0]?.customdata;
      if (Array.isArray(numbers) && numbers.length > 1) { select(`number=${numbers[1]}`); trace.scrollIntoView({ block: "nearest" }); }
    });
  });

  // The filter: its result is a list of the matching steps. A later filter aborts an earlier one and its selection.
  // `toFirst`: select the first match, even if the selected step also matches. `toStep`: select this step. `before`: how
  // many steps the user had selected when setting the filter; the filter never replaces a later selection by the user.
  let timer = 0;
  let filterRequest = new AbortController();
  async function filter({ write = "replaceState", toFirst = false, toStep = null, before = selections } = {}) {
    filterRequest.abort();
    const { signal } = filterRequest = new AbortController();
    const query = filters();
    const url = new URL(location.href);
    for (const name of ["find", "failed", "like"]) { if (query.has(name)) url.searchParams.set(name, query.get(name)); else url.searchParams.delete(name); }
    if (write) history[write](null, "", url);
    shownSearch = location.search;
    const id = selectedId(), isFiltered = query.size > 0;
    if (!isFiltered && id) query.set("step", id);
    let found;
    // After consent, the filter also searches the main arguments of calls. Content is only sent for a POST.
    const isContentSearched = isContentShown() && query.has("find");
    try { found = await (isContentSearched ? part("matches", signal, query) : part(`tree?${query}`, signal)); } catch (error) {
      if (error.name !== "AbortError") summary.textContent = `Could not be filtered: ${error.message}`;
      return;
    }
    const counted = found.querySelector("[data-summary]");
    summary.textContent = counted ? counted.textContent : "";
    counted?.remove();
    document.getElementById("tree-empty").replaceChildren();
    tree.replaceChildren(found);
    changed.clear();
    const isMatch = markSelected(selectedId());
    resetTabStop();
    rowsAdded();
    // The details show a match; the first one, if only failed steps were asked for.
    const next = toStep ?? (isFiltered && (toFirst || !isMatch) ? items()[0]?.dataset.step : null);
    // A step that the user selected meanwhile stays selected.
    if (!next || selections !== before) return;
    tree.scrollTop = 0;
    await selectStep(next, { write: write && "replaceState", until: [signal], isAutomatic: true });
  }
  const filterContent = () => { if (isContentShown() && new FormData(form).get("find").trim()) filter({ write: null }); };
  document.addEventListener("agentobs:consent", filterContent);
  addEventListener("DOMContentLoaded", filterContent);
  form.addEventListener("input", (event) => {
    form.elements.like.value = "";
    clearTimeout(timer);
    const before = selections, isTyped = event.target.matches("[type=search]");
    timer = setTimeout(() => filter({ toFirst: event.target.checked === true, before }), isTyped ? TYPING_MS : 0);
  });
  form.addEventListener("submit", (event) => { event.preventDefault(); clearTimeout(timer); filter(); });

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-step]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    const box = link.getBoundingClientRect();
    // The sign before the text expands; the rest selects.
    const isSign = link.hasAttribute("aria-expanded") && event.detail && event.clientX - box.left < parseFloat(getComputedStyle(link).paddingLeft);
    if (isSign) { setExpanded(link, link.getAttribute("aria-expanded") !== "true"); setTabStop(link); return; }
    if (link.dataset.filter) { showAlike(link.dataset.step); return; }
    selectStep(link.dataset.step);
  });

  // Show the steps that failed in the same way as the step with this ID, and of these this step. Back shows the page as
  // it was before.
  function showAlike(id) {
    form.elements.find.value = "";
    form.elements.failed.checked = true;
    form.elements.like.value = id;
    clearTimeout(timer);
    filter({ write: "pushState", toStep: id });
  }

  const MOVES = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity };
  tree.addEventListener("keydown", (event) => {
    const item = event.target.closest("[role=treeitem]");
    if (!item || event.ctrlKey || event.metaKey || event.altKey) return;
    const shown = visible(), at = shown.indexOf(item);
    let target = null;
    if (event.key in MOVES) target = shown[Math.min(Math.max(at + MOVES[event.key], 0), shown.length - 1)];
    else if (event.key === "ArrowRight") {
      if (item.getAttribute("aria-expanded") === "false") setExpanded(item, true);
      else if (below(item).length) target = shown[at + 1];
    } else if (event.key === "ArrowLeft") {
      if (item.getAttribute("aria-expanded") === "true") setExpanded(item, false);
      else target = parentOf(item);
    } else if (event.key === " ") selectStep(item.dataset.step);
    else return;
    event.preventDefault();
    if (target) { setTabStop(target); target.focus(); target.scrollIntoView({ block: "nearest" }); }
  });
  document.addEventListener("keydown", (event) => {
    const at = document.activeElement;
    const isTyping = at && at.matches("input, textarea, select");
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey || !(at === document.body || at.closest("main"))) return;
    if (event.key === "/") { event.preventDefault(); form.querySelector("[type=search]").focus(); return; }
    if (event.key !== "n" && event.key !== "p") return;
    const link = links.querySelector(`a[data-key="${event.key}"]`);
    event.preventDefault();
    if (link) selectStep(link.dataset.step, { focus: true });
  });

  addEventListener("popstate", () => {
    // A link to a part of the page, such as "Skip to content", changes only the fragment.
    if (location.search === shownSearch) return;
    const before = new URLSearchParams(shownSearch), now = new URLSearchParams(location.search), id = now.get("step");
    shownSearch = location.search;
    before.delete("step");
    now.delete("step");
    if (id && String(before) === String(now)) selectStep(id, { write: null }); else location.reload();
  });
  // After a live update of the tree, the user's selection and expansions are restored.
  document.addEventListener("agentobs:replaced", (event) => {
    if (event.target !== tree) return;
    for (const [id, isExpanded] of changed) {
      const item = itemOf(id);
      if (item && String(isExpanded) !== item.getAttribute("aria-expanded")) setExpanded(item, isExpanded);
    }
    // If no step was selected, show the one that failed the session.
    const failing = tree.querySelector("[aria-selected=true]");
    if (failing && !selectedId()) selectStep(failing.dataset.step, { write: null, isAutomatic: true });
    markSelected(selectedId());
    resetTabStop();
    filterContent();
    // The facts of a step that has ended meanwhile.
    if (step.querySelector(".step-head[data-open]")) selectStep(selectedId(), { write: null, isAutomatic: true });
  });
  resetTabStop();
  scrollTo(0, 0);
  // A link to a step leads to the step.
  if (!location.hash && new URLSearchParams(location.search).has("step")) trace.scrollIntoView({ block: "start" });
  const initial = tree.querySelector("[aria-selected=true]");
  if (initial) {
    const top = tree.scrollTop + initial.getBoundingClientRect().top - tree.getBoundingClientRect().top - ABOVE;
    tree.scrollTop = top;
    // The end of the tree may be below the window. Until the page is scrolled, the tree is then shorter.
    const room = innerHeight - tree.getBoundingClientRect().top - 2;
    if (room >= ABOVE && initial.getBoundingClientRect().bottom > innerHeight) {
      tree.style.maxHeight = `${room}px`;
      tree.scrollTop = top;
      addEventListener("scroll", function restore() {
        // Its rows would move under the pointer: a click could miss its row.
        if (tree.matches(":hover")) return;
        tree.style.maxHeight = "";
        removeEventListener("scroll", restore);
      });
    }
  }
})();
