// Times stay relative while a page is open. The exact time, in the reader's own zone, is shown on hover.
import { findAll } from "./elements.js";

/** Below how many seconds a unit of how many is used. @type {[number, number, string][]} */
const steps = [[60, 1, "s"], [3600, 60, "min"], [86400, 3600, "h"], [86400 * 60, 86400, "d"]];

/** @param {number} seconds */
function coarse(seconds) {
  for (const [below, size, unit] of steps) {
    if (seconds < below) return `${Math.round(seconds / size)} ${unit}`;
  }
  return seconds > 86400 * 730 ? `${(seconds / 86400 / 365.25).toFixed(1)} years` : `${Math.round(seconds / 86400)} d`;
}

/** @param {number} at  @param {number} now */
export function ago(at, now) {
  const seconds = (now - at) / 1000;
  if (Math.abs(seconds) < 1) return "now";
  return seconds > 0 ? `${coarse(seconds)} ago` : `in ${coarse(-seconds)}`;
}

/** @param {ParentNode} within */
export function refreshTimes(within = document) {
  const now = Date.now();
  for (const one of findAll(HTMLTimeElement, "time[datetime]", within)) {
    const at = Date.parse(one.dateTime);
    if (Number.isNaN(at)) continue;
    const text = ago(at, now);
    if (one.textContent !== text) one.textContent = text;
    if (!one.dataset.local) {
      one.dataset.local = "1";
      one.title = `${new Date(at).toLocaleString()}\n${one.title}`;
    }
  }
}

export function startTimes() {
  refreshTimes();
  setInterval(() => document.hidden || refreshTimes(), 5000);
}
