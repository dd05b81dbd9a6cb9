// Shows content in place of the button that requests it. Without this script, content opens as a separate page.
// After the first click, the browser shows content of this home without further clicks until its window is closed, or
// until the user hides it again. The server never sends content that was not requested with POST.
"use strict";
(() => {
  const KEY = `agentobs-content:${document.querySelector("meta[name=agentobs-home]")?.content}`;
  const consent = { get: () => { try { return sessionStorage.getItem(KEY) === "yes"; } catch { return false; } },
    set: (given) => { try { if (given) sessionStorage.setItem(KEY, "yes"); else sessionStorage.removeItem(KEY); } catch { /* the browser stores nothing */ } } };
  const hide = document.getElementById("hide-content");
  const showHide = () => {
    if (hide) hide.hidden = !consent.get();
    // For trace.js, whose filter then also searches arguments.
    document.documentElement.toggleAttribute("data-content-shown", consent.get());
  };
  hide?.addEventListener("click", () => { consent.set(false); location.reload(); });
  showHide();

  async function fetched(form, button) {
    const body = new URLSearchParams(new FormData(form, button));
    const response = await fetch(form.action, { method: "POST", body, headers: { "x-agentobs": "part" }, credentials: "same-origin" });
    if (!response.ok) throw new Error(`the server responded with status ${response.status}`);
    return response.text();
  }

  // Texts that scroll are Tab stops, so that the keyboard can scroll them.
  function makeScrollersFocusable(within) {
    for (const each of within.querySelectorAll("pre, .markdown table")) {
      if (each.scrollHeight > each.clientHeight || each.scrollWidth > each.clientWidth) each.tabIndex = 0;
    }
  }
  document.addEventListener("toggle", (event) => makeScrollersFocusable(event.target), true);

  // After consent, rows of tool calls show the first characters of their main argument, and interactions of their prompt.
  const ROWS = ["tool", "agent", "interaction"].map((kind) => `[data-session] a.${kind}[data-number]:not([data-argument])`).join();
  const MOST_ROWS = 200;
  async function showArguments() {
    if (!consent.get()) return;
    const rows = [...document.querySelectorAll(ROWS)].filter((each) => !each.hidden);
    for (let at = 0; at < rows.length; at += MOST_ROWS) {
      const some = rows.slice(at, at + MOST_ROWS);
      for (const each of some) each.dataset.argument = "";
      const body = new URLSearchParams({ numbers: some.map((each) => each.dataset.number).join() });
      const path = `${some[0].closest("[data-session]").dataset.session}/arguments`;
      const response = await fetch(path, { method: "POST", body, headers: { "x-agentobs": "part" }, credentials: "same-origin" });
      if (!response.ok) return;
      const texts = await response.json();
      if (!consent.get()) return;
      for (const each of some) {
        const text = texts[each.dataset.number], name = each.querySelector(".name");
        if (!text || !name) continue;
        const shown = document.createElement("span");
        shown.className = "argument";
        shown.textContent = text;
        // At the end, because the start of a long row is what remains visible: the failures, not the text.
        name.parentElement.append(" ", shown);
      }
    }
  }
  // The rows are complete without arguments, so a failed request needs no message.
  const tryArguments = () => { showArguments().catch(() => {}); };
  document.addEventListener("agentobs:rows", tryArguments);

  // For each place, the number of the latest request: an earlier response never replaces a later one.
  const latest = new WeakMap();
  async function reveal(form, submitter, isClick) {
    const place = form.dataset.into && document.querySelector(`[data-content="${CSS.escape(form.dataset.into)}"]`);
    if (!place) return;
    const number = (latest.get(place) ?? 0) + 1;
    latest.set(place, number);
    const button = submitter || form.querySelector("button");
    button.disabled = true;
    try {
      const text = await fetched(form, submitter);
      if (latest.get(place) !== number || !place.isConnected) return;
      // The server escaped all text in it, and the content security policy of the page blocks scripts in it.
      place.innerHTML = text;
      makeScrollersFocusable(place);
      place.dispatchEvent(new CustomEvent("agentobs:replaced", { bubbles: true }));
      place.dispatchEvent(new CustomEvent("agentobs:content", { bubbles: true }));
      if (!isClick) return;
      const isFirst = !consent.get();
      consent.set(true);
      showHide();
      // As after a reload, the other places also show their content.
      if (isFirst) revealFirst(document, form.dataset.into);
      document.dispatchEvent(new CustomEvent("agentobs:consent"));
      tryArguments();
      place.setAttribute("tabindex", "-1");
      place.focus({ preventScroll: true });
      place.scrollIntoView({ block: "nearest" });
      if (form.dataset.at) document.getElementById(form.dataset.at)?.scrollIntoView({ block: "start" });
    } catch (error) {
      const message = document.createElement("p");
      message.className = "warning";
      message.setAttribute("role", "alert");
      message.textContent = `Could not be shown: ${error.message}`;
      form.append(message);
    } finally {
      button.disabled = false;
    }
  }
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.dataset.into || !document.querySelector(`[data-content="${CSS.escape(form.dataset.into)}"]`)) return;
    event.preventDefault();
    reveal(form, event.submitter, true);
  });
  function revealFirst(within, except = null) {
    if (!consent.get()) return;
    for (const form of within.querySelectorAll("form[data-first][data-into]")) if (form.dataset.into !== except) reveal(form, null, false);
  }
  document.addEventListener("agentobs:step", (event) => revealFirst(event.detail));
  document.addEventListener("agentobs:replaced", (event) => { if (event.target.matches("[data-live]")) { revealFirst(event.target); tryArguments(); } });
  addEventListener("DOMContentLoaded", () => { makeScrollersFocusable(document); revealFirst(document); tryArguments(); });
})();
