// Converts the times of a report from UTC to the user's time zone, and shows which zone that is.
"use strict";
(() => {
  const options = { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit",
    second: "2-digit", hourCycle: "h23" };
  const format = new Intl.DateTimeFormat("sv-SE", options);
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "your time zone";
  for (const each of document.querySelectorAll("time[datetime]")) {
    const at = new Date(each.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    each.title = each.textContent;
    each.textContent = format.format(at);
  }
  for (const each of document.querySelectorAll("[data-zone]")) {
    each.textContent = `Times are shown in ${zone}; hover over a time to see it in UTC. Days in figures are in UTC.`;
  }
})();
