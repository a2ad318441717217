// Keeps an open page true: one stream of events per browser, and parts of the page that replace themselves.
import { facts, isSame, sent } from "./compare.js";
import { find, findAll, openMenus } from "./elements.js";
import { keepPlace } from "./flows.js";
import { updateRows } from "./list.js";
import { refreshTimes } from "./times.js";

const root = document.documentElement;
const base = root.dataset.base ?? "";
const channel = "BroadcastChannel" in window ? new BroadcastChannel(`penstock${base}`) : null;
const paused = () => localStorage.getItem("penstock-paused") === "1";

/** @type {EventSource | null} */
let source = null;
/** @type {(() => void) | null} */
let giveUp = null;
let asking = false;
let missed = false;
/** @type {HTMLButtonElement | null} */
let button = null;

export function startLive() {
  button = find(HTMLButtonElement, "button.live");
  if (!button || root.dataset.refresh === "never" || !document.querySelector(".side nav")) return;
  button.hidden = false;
  show();
  button.addEventListener("click", () => {
    localStorage.setItem("penstock-paused", paused() ? "" : "1");
    show();
    follow();
  });
  channel?.addEventListener("message", (event) => onState(event.data));
  document.addEventListener("visibilitychange", () => {
    missed = true; // hidden pages are not kept up to date
    follow();
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", follow);
  follow();
}

function show() {
  if (!button) return;
  button.setAttribute("aria-pressed", String(!paused()));
  button.textContent = paused() ? "paused" : "live";
}

/** Open the stream if this page is visible and no other one has it. Hidden pages close theirs. */
function follow() {
  if (document.hidden || paused()) return close();
  if (source || giveUp) return;
  if (!navigator.locks) return open(); // no locks without TLS: each visible page has its own
  const wish = new AbortController();
  giveUp = () => wish.abort();
  navigator.locks
    .request(`penstock-stream${base}`, { signal: wish.signal }, () => {
      open();
      return new Promise((resolve) => (giveUp = () => resolve(undefined)));
    })
    .catch(() => {});
}

function open() {
  source = new EventSource(`${base}/events`);
  source.addEventListener("state", (event) => {
    const state = JSON.parse(event.data);
    channel?.postMessage(state);
    onState(state);
  });
  source.addEventListener("open", () => button?.classList.remove("lost"));
  source.addEventListener("error", () => {
    button?.classList.add("lost");
    // an answer that is no stream, for example of a server that starts, ends the browser's own attempts
    if (source?.readyState === EventSource.CLOSED) setTimeout(reopen, 5000, source);
  });
}

/** @param {EventSource} failed */
function reopen(failed) {
  if (source !== failed) return;
  missed = true;
  open();
  refresh();
}

function close() {
  source?.close();
  source = null;
  giveUp?.();
  giveUp = null;
}

/** @param {{changed: boolean, totals: Record<string, number>, error: boolean}} state */
function onState(state) {
  button?.classList.toggle("lost", state.error);
  if (document.hidden || paused()) return;
  if (state.changed || missed || root.dataset.refresh === "always") refresh();
}

/** Ask for this page again, and replace the parts that differ. Without an answer nothing is asked again. */
function refresh() {
  if (asking) return;
  if (isRead()) {
    missed = true;
    return;
  }
  asking = true;
  missed = false;
  // a document of this type is parsed without running scripts, and needs no policy of Trusted Types
  const request = new XMLHttpRequest();
  request.responseType = "document";
  request.timeout = 10000;
  request.open("GET", location.href);
  request.setRequestHeader("X-Penstock-Live", "1");
  request.onloadend = () => {
    asking = false;
    if (request.status === 401) location.reload(); // the login has ended
    else if (request.status === 200 && request.response) replaceParts(request.response);
    else missed = true;
  };
  request.send();
}

/** Whether somebody reads, selects or fills in something that a refresh would disturb. */
function isRead() {
  if (document.activeElement?.closest("main form") || openMenus().length) return true;
  if (findAll(HTMLTextAreaElement, "main textarea").some((one) => one.value !== one.defaultValue)) return true;
  const selection = getSelection();
  return Boolean(selection && !selection.isCollapsed && document.querySelector("main")?.contains(selection.anchorNode));
}

/** @param {Document} fresh */
function replaceParts(fresh) {
  for (const old of document.querySelectorAll("[data-live]")) {
    const now = fresh.getElementById(old.id);
    if (!now || isSame(old, now)) continue;
    if (old.matches(":hover") && old.matches(".card:not(#why):not(#progress), .parts, table")) {
      missed = true; // it is replaced when the pointer has left
      continue;
    }
    const made = document.importNode(now, true);
    sent.set(made, facts(now));
    keepOpen(old, made);
    const { scrollLeft, scrollTop } = old;
    old.replaceWith(made);
    keepPlace(made, scrollLeft, scrollTop);
    refreshTimes(made);
  }
  for (const made of fresh.querySelectorAll("main > [data-live], main .columns-2 > div > [data-live]")) {
    if (made.id && !document.getElementById(made.id)) insertAfterNeighbour(made);
  }
  updateRows(fresh);
}

/** A part that was not there before, for example the first error, comes to its place. @param {Element} made */
function insertAfterNeighbour(made) {
  let before = made.previousElementSibling;
  while (before && !(before.id && document.getElementById(before.id))) before = before.previousElementSibling;
  const anchor = before && document.getElementById(before.id);
  if (anchor) anchor.after(document.importNode(made, true));
}

/** Details that the reader has opened or closed stay so. @param {Element} old  @param {Element} made */
function keepOpen(old, made) {
  const were = old.querySelectorAll("details");
  made.querySelectorAll("details").forEach((one, n) => {
    one.open = were[n]?.open ?? one.open;
  });
}
