// Shows the progress of running commands. Without this script, a reload shows it.
"use strict";
(() => {
  const POLL_MS = 1000;
  const region = document.getElementById("jobs");
  if (!region) return;
  let shown = null;
  async function update() {
    if (!region.querySelector("[data-running]") || document.hidden) return;
    const response = await fetch(`${location.pathname}/jobs`, { credentials: "same-origin", cache: "no-store" });
    if (!response.ok || response.redirected) return;
    const text = await response.text();
    if (text === shown) return;
    shown = text;
    const focus = region.contains(document.activeElement) ? document.activeElement.closest(".job")?.id : null;
    // The server escaped all text in it, and it contains no content.
    region.innerHTML = text;
    if (focus) {
      const job = document.getElementById(focus);
      const target = job?.querySelector("button:not([hidden])") ?? job;
      target?.focus({ preventScroll: true });
    }
    region.dispatchEvent(new CustomEvent("agentobs:replaced", { bubbles: true }));
    if (!region.querySelector("[data-running]")) await updatePanels();
  }
  // A fixture that a command has written can be replayed.
  async function updatePanels() {
    const panels = document.getElementById("command-panels");
    const response = await fetch(location.href, { credentials: "same-origin", cache: "no-store" });
    if (!response.ok || response.redirected) return;
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html").getElementById("command-panels");
    if (!fresh || panels.contains(document.activeElement)) return;
    panels.replaceChildren(...fresh.childNodes);
    panels.dispatchEvent(new CustomEvent("agentobs:replaced", { bubbles: true }));
  }
  // A dashboard that has ended does not answer; app.js shows that.
  setInterval(() => update().catch(() => {}), POLL_MS);
})();
