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

/** A smaller difference of clocks (ms) is that of the network. A slower answer says nothing about clocks. */
const SAME = 2000;
/** How far (ms) the store's clock is ahead of that of this device: instants of jobs are the store's. */
let ahead = 0;

/** @param {number} now  by the store's clock  @param {number} asked  by that of this device  @param {number} answered */
export function setClock(now, asked, answered) {
  if (!now || answered - asked > SAME) return;
  ahead = Math.abs(now - asked) > SAME ? now - asked : 0;
}

/** @param {ParentNode} within */
export function refreshTimes(within = document) {
  const now = Date.now() + ahead;
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
  const [load] = performance.getEntriesByType("navigation");
  if (load instanceof PerformanceNavigationTiming) {
    const since = Date.now() - performance.now(); // not timeOrigin: its clock stands still while a device sleeps
    setClock(Number(document.documentElement.dataset.now), since + load.requestStart, since + load.responseStart);
  }
  refreshTimes();
  document.addEventListener("visibilitychange", () => document.hidden || refreshTimes());
  setInterval(() => document.hidden || refreshTimes(), 5000);
}
