// Keeps an open page true: one stream of events per browser, and parts of the page that replace themselves.
import { facts, isSame, sent } from "./compare.js";
import { find } from "./elements.js";
import { keepPlace } from "./flows.js";
import { isInUse, startUse } from "./in_use.js";
import { updateRows } from "./list.js";
import { refreshTimes, setClock } from "./times.js";

const root = document.documentElement;
const base = root.dataset.base ?? "";
const channel = "BroadcastChannel" in window ? new BroadcastChannel(`penstock${base}`) : null;
const paused = () => localStorage.getItem("penstock-paused") === "1";
/** A page is asked for again after this time (ms) also without an event: some facts change by time alone. */
const OLD = 15000;
/** The same if a part was in use, and is as it was. */
const HELD = 5000;
/** A stream that is lost for less than this (ms) is not worth a mark. */
const BRIEF = 2500;
/** What a page shows when the stream is lost. */
const LOST = { changed: false, version: "", totals: {}, error: true };

/** @type {EventSource | null} */
let source = null;
/** @type {(() => void) | null} */
let giveUp = null;
let asking = false;
let missed = false;
let held = false;
let gone = false;
let asked = Date.now();
/** The version of the queues that this page shows. */
let version = root.dataset.version ?? "";
/** @type {HTMLButtonElement | null} */
let button = null;

export function startLive() {
  button = find(HTMLButtonElement, "button.live");
  if (!button || root.dataset.refresh === "never" || !document.querySelector(".side nav")) return;
  button.hidden = false;
  show();
  startUse();
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
  addEventListener("pageshow", (event) => {
    missed ||= event.persisted;
    follow();
  });
  follow();
}

function show() {
  if (!button) return;
  button.setAttribute("aria-pressed", String(!paused() && !gone));
  button.textContent = gone ? "gone" : paused() ? "paused" : "live";
}

/** Open the stream if this page is visible and no other one has it. Hidden pages close theirs. */
function follow() {
  if (document.hidden || paused() || gone) return close();
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
    setTimeout(sayLost, BRIEF, source);
    // an answer that is no stream, for example of a server that starts, ends the browser's own attempts
    if (source?.readyState === EventSource.CLOSED) setTimeout(reopen, 5000, source);
  });
}

/** Mark all open pages, unless the stream is back. @param {EventSource} failed */
function sayLost(failed) {
  if (source !== failed || failed.readyState === EventSource.OPEN) return;
  channel?.postMessage(LOST);
  missed = true;
  onState(LOST);
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

/** Whether there were changes that this page does not show, also before it listened. @param {State} state */
function isNewer(state) {
  const [[process, number], [ours, shown]] = [state.version.split("-"), version.split("-")];
  return process === ours ? Number(number) > Number(shown) : state.changed;
}

/**
 * @typedef {{changed: boolean, version: string, totals: Record<string, number>, error: boolean}} State
 * @param {State} state
 */
function onState(state) {
  button?.classList.toggle("lost", state.error);
  if (document.hidden || paused() || gone) return;
  const age = Date.now() - asked;
  if (isNewer(state) || missed || root.dataset.refresh === "always" || age > (held ? HELD : OLD)) refresh();
}

/** Ask for this page again, and replace the parts that differ. Without an answer nothing is asked again. */
function refresh() {
  missed = asking; // the answer that comes may be older
  if (asking) return;
  asking = true;
  held = false;
  asked = Date.now();
  // a document of this type is parsed without running scripts, and needs no policy of Trusted Types
  const request = new XMLHttpRequest();
  request.responseType = "document";
  request.timeout = 10000;
  request.open("GET", location.href);
  request.setRequestHeader("X-Penstock-Live", "1");
  request.onloadend = () => {
    asking = false;
    if (request.status === 401 || request.status === 403) location.reload(); // the login or a right has ended
    else if (request.status === 404) end();
    else if (request.status === 503 && request.getResponseHeader("Refresh")) location.reload(); // why the app cannot be loaded
    else if (request.status === 200 && request.response) take(request.response, request.responseURL);
    else missed = true;
  };
  request.send();
}

/** What the page shows exists no longer: it stays as it is, and says so. */
function end() {
  gone = true;
  show();
  button?.classList.add("lost");
  close();
}

/** @param {Document} fresh  @param {string} url  of the page that was sent */
function take(fresh, url) {
  if (new URL(url).pathname !== location.pathname) return location.replace(url); // it led to another page
  version = fresh.documentElement.dataset.version ?? "";
  setClock(Number(fresh.documentElement.dataset.now), asked, Date.now());
  replaceParts(fresh);
}

/** Parts that a page has only sometimes. */
const SOMETIMES = "main > [data-live], main .columns-2 > div > [data-live]";

/** @param {Document} fresh */
function replaceParts(fresh) {
  for (const old of document.querySelectorAll("[data-live]")) {
    const now = fresh.getElementById(old.id);
    if (now ? isSame(old, now) : !old.matches(SOMETIMES)) continue;
    if (isInUse(old)) {
      held = true; // it is replaced later
      continue;
    }
    if (!now) {
      old.remove();
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
  for (const made of fresh.querySelectorAll(SOMETIMES)) {
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
