// Tools of the transcript: finding a text in the page, expanding everything, and the turn in the URL.
"use strict";
(() => {
  const place = document.querySelector("[data-content=transcript]");
  if (!place) return;
  let found = [], at = -1;

  function ranges(words) {
    const wanted = words.toLowerCase(), result = [];
    for (const turn of place.querySelectorAll("article.turn")) {
      const walker = document.createTreeWalker(turn, NodeFilter.SHOW_TEXT);
      for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const text = node.data.toLowerCase();
        for (let from = text.indexOf(wanted); from >= 0; from = text.indexOf(wanted, from + wanted.length)) {
          const range = new Range();
          range.setStart(node, from);
          range.setEnd(node, Math.min(from + wanted.length, node.data.length));
          result.push(range);
        }
      }
    }
    return result;
  }
  function show(status) {
    if (!window.CSS?.highlights) return;
    CSS.highlights.set("found", new Highlight(...found));
    CSS.highlights.set("current", new Highlight(...(found[at] ? [found[at]] : [])));
    const current = found[at]?.startContainer.parentElement;
    status.textContent = found.length ? `${at + 1} of ${found.length}` : "not found";
    if (!current) return;
    for (let each = current.closest("details"); each; each = each.parentElement.closest("details")) each.open = true;
    current.scrollIntoView({ block: "center" });
  }
  function find(words, status, step) {
    if (!words) { found = []; at = -1; window.CSS?.highlights?.clear(); status.textContent = ""; return; }
    if (step && found.length) at = (at + step + found.length) % found.length;
    else { found = ranges(words); at = found.length ? 0 : -1; }
    show(status);
  }

  place.addEventListener("agentobs:content", () => {
    found = [];
    at = -1;
    const box = document.getElementById("transcript-find"), status = document.getElementById("transcript-found"), expand = document.getElementById("transcript-expand");
    if (!box) return;
    box.closest("[hidden]").hidden = false;
    box.addEventListener("input", () => find(box.value, status, 0));
    box.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); find(box.value, status, event.shiftKey ? -1 : 1); } });
    expand.addEventListener("click", () => {
      const every = [...place.querySelectorAll("article.turn details")], isOpen = expand.dataset.open !== "yes";
      for (const each of every) each.open = isOpen;
      expand.dataset.open = isOpen ? "yes" : "no";
      expand.textContent = isOpen ? "Collapse all" : "Expand all";
    });
    const turn = place.querySelector("input[name=turn]")?.value, lane = place.querySelector("input[name=lane]")?.value;
    const url = new URL(location.href);
    for (const [name, value] of [["turn", turn], ["lane", lane === "main" ? "" : lane]]) { if (value) url.searchParams.set(name, value); else url.searchParams.delete(name); }
    history.replaceState(null, "", url);
    if (turn) requestAnimationFrame(() => document.getElementById(`turn-${turn}`)?.scrollIntoView({ block: "start" }));
  });
})();
