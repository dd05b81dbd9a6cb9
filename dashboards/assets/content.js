// Shows content in place of the button that requests it. Without this script, content opens as a separate page.
"use strict";
(() => {
  async function fetched(form, button) {
    const body = new URLSearchParams(new FormData(form, button));
    const response = await fetch(form.action, { method: "POST", body, headers: { "x-agentobs": "part" }, credentials: "same-origin" });
    if (!response.ok) throw new Error(`the server responded with status ${response.status}`);
    return response.text();
  }

  document.addEventListener("submit", async (event) => {
    const form = event.target;
    const place = form.dataset.into && document.querySelector(`[data-content="${CSS.escape(form.dataset.into)}"]`);
    if (!place) return;
    event.preventDefault();
    const button = event.submitter || form.querySelector("button");
    button.disabled = true;
    try {
      // The server escaped all text in it, and the content security policy of the page blocks scripts in it.
      place.innerHTML = await fetched(form, event.submitter);
      place.dispatchEvent(new CustomEvent("agentobs:replaced", { bubbles: true }));
      place.setAttribute("tabindex", "-1");
      place.focus({ preventScroll: true });
      place.scrollIntoView({ block: "start" });
    } catch (error) {
      button.disabled = false;
      const message = document.createElement("p");
      message.className = "warning";
      message.setAttribute("role", "alert");
      message.textContent = `Could not be shown: ${error.message}`;
      form.append(message);
    }
  });
})();
