// Puts what was said into the place of the button that asks for it; without this script it comes as a page of its own.
"use strict";
(() => {
  async function fetched(form, button) {
    const body = new URLSearchParams(new FormData(form, button));
    const answer = await fetch(form.action, { method: "POST", body, headers: { "x-agentobs": "part" }, credentials: "same-origin" });
    if (!answer.ok) throw new Error(`the answer was ${answer.status}`);
    return answer.text();
  }

  document.addEventListener("submit", async (event) => {
    const form = event.target;
    const place = form.dataset.into && document.querySelector(`[data-said="${CSS.escape(form.dataset.into)}"]`);
    if (!place) return;
    event.preventDefault();
    const button = event.submitter || form.querySelector("button");
    button.disabled = true;
    try {
      // All text in it was escaped where the page was made, and the policy of the page lets no script in it run.
      place.innerHTML = await fetched(form, event.submitter);
      place.dispatchEvent(new CustomEvent("agentobs:replaced", { bubbles: true }));
      place.setAttribute("tabindex", "-1");
      place.focus({ preventScroll: true });
      place.scrollIntoView({ block: "start" });
    } catch (error) {
      button.disabled = false;
      const told = document.createElement("p");
      told.className = "warning";
      told.setAttribute("role", "alert");
      told.textContent = `Could not be shown: ${error.message}`;
      form.append(told);
    }
  });
})();
