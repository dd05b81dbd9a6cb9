// Turns the instants of a report, which are UTC, to the zone of its reader, and says which that is.
"use strict";
(() => {
  const options = { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit",
    second: "2-digit", hourCycle: "h23" };
  const written = new Intl.DateTimeFormat("sv-SE", options);
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "your zone";
  for (const each of document.querySelectorAll("time[datetime]")) {
    const at = new Date(each.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    each.title = each.textContent;
    each.textContent = written.format(at);
  }
  for (const each of document.querySelectorAll("[data-zone]")) {
    each.textContent = `Times are those of ${zone}; each says its UTC when it is pointed at. Days of figures are those of UTC.`;
  }
})();
