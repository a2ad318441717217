// The list of jobs while it is open: rows are brought up to date in place. While somebody reads the list, no row
// moves: new ones are counted, and come with a click or when the reader has left.
import { isSame, sent, facts } from "./compare.js";
import { find, findAll } from "./elements.js";
import { refreshTimes } from "./times.js";

/** A reader who has touched nothing for this long (ms) has left, if the pointer is elsewhere. */
const LEFT = 1500;
/** The most rows of a list that grows. */
const MOST = 200;

/** Rows that wait until the list is not read. @type {HTMLTableRowElement[] | null} */
let waiting = null;
let touched = 0;

/** @param {ParentNode} within */
const table = (within = document) => find(HTMLTableElement, "table[data-frozen]", within);
const news = () => find(HTMLButtonElement, "button.new");
/** @param {ParentNode} within */
const rowsOf = (within) => findAll(HTMLTableRowElement, "tr[data-row]", within);

export function startList() {
  if (!document.querySelector("form.filters")) return;
  for (const kind of ["pointermove", "pointerdown", "keydown", "wheel", "touchstart"]) {
    addEventListener(kind, () => (touched = Date.now()), { passive: true });
  }
  news()?.addEventListener("click", () => {
    for (const row of document.querySelectorAll("tr.at")) row.classList.remove("at");
    showWaiting();
    scrollTo(0, 0);
  });
  setInterval(() => {
    const list = table();
    if (waiting && list && !isRead(list)) showWaiting();
  }, 500);
}

/** Whether somebody reads, selects or is about to touch the list. @param {HTMLTableElement} list */
function isRead(list) {
  return (
    list.dataset.frozen !== "rows" ||
    list.matches(":hover") ||
    list.contains(document.activeElement) ||
    Boolean(list.querySelector("tr.at, td input:checked")) ||
    !matchMedia("(hover: hover)").matches ||
    list.getBoundingClientRect().top < 0 ||
    Date.now() - touched < LEFT
  );
}

/** Bring the list up to date. @param {Document} fresh */
export function updateRows(fresh) {
  if (!fresh.querySelector("form.filters")) return; // another page
  const list = table();
  const other = table(fresh);
  if (!list && other) {
    const card = other.closest("section");
    const empty = document.querySelector("main .empty");
    if (card) empty?.replaceWith(document.importNode(card, true));
    return;
  }
  if (!list || fresh.querySelector("main > .failed")) return;
  const rows = other ? rowsOf(other) : [];
  const added = replaceChanged(list, rows);
  const gone = markGone(list, rows, !other || !("more" in other.dataset));
  waiting = added || gone ? rows : null;
  showCount(added);
  if (waiting && !isRead(list)) showWaiting();
  const [which, count] = [document, fresh].map((one) => find(HTMLElement, "#picked .which", one));
  if (which && count) which.dataset.all = count.dataset.all;
  document.dispatchEvent(new Event("rows"));
}

/**
 * Replace the rows that are there and differ; returns the number of those that are not.
 * @param {HTMLTableElement} list  @param {HTMLTableRowElement[]} rows
 */
function replaceChanged(list, rows) {
  const there = new Map(rowsOf(list).map((row) => [row.dataset.row, row]));
  let added = 0;
  for (const row of rows) {
    const old = there.get(row.dataset.row);
    if (!old) added += 1;
    else if (!isSame(old, row) && !old.querySelector("a:focus, input:focus")) {
      const made = imported(row);
      made.classList.toggle("at", old.classList.contains("at"));
      const box = old.querySelector("input");
      const other = made.querySelector("input");
      if (box && other) other.checked = box.checked;
      old.replaceWith(made);
    }
  }
  return added;
}

/**
 * Mark rows that are in the list no longer: of those at its end only if it is complete.
 * @param {HTMLTableElement} list  @param {HTMLTableRowElement[]} rows  @param {boolean} complete
 */
function markGone(list, rows, complete) {
  const now = new Set(rows.map((row) => row.dataset.row));
  const shown = rowsOf(list);
  const last = shown.map((row) => now.has(row.dataset.row)).lastIndexOf(true);
  let any = false;
  shown.forEach((row, n) => {
    const gone = !now.has(row.dataset.row) && (n < last || complete);
    row.classList.toggle("gone", gone);
    any ||= gone;
  });
  return any;
}

function showWaiting() {
  const list = table();
  if (!list || !waiting) return;
  const there = new Map(rowsOf(list).map((row) => [row.dataset.row, row]));
  const now = waiting.map((row) => there.get(row.dataset.row) ?? imported(row));
  const names = new Set(now.map((row) => row.dataset.row));
  const rest = rowsOf(list).filter((row) => !names.has(row.dataset.row) && !row.classList.contains("gone"));
  list.tBodies[0]?.replaceChildren(...[...now, ...rest].slice(0, Math.max(now.length, MOST)));
  waiting = null;
  showCount(0);
}

/** @param {number} n */
function showCount(n) {
  const button = news();
  if (!button) return;
  button.hidden = !n || table()?.dataset.frozen !== "rows";
  button.textContent = `${n}${n >= 50 ? "+" : ""} new`;
}

/** @param {HTMLTableRowElement} row */
function imported(row) {
  const made = document.importNode(row, true);
  sent.set(made, facts(row));
  made.classList.add("fresh");
  refreshTimes(made);
  return made;
}

/** Rows of another page of the list come to its end; returns how many the list has then. @param {Document} page */
export function appendRows(page) {
  const list = table();
  if (!list) return 0;
  const there = new Set(rowsOf(list).map((row) => row.dataset.row));
  const more = rowsOf(page).filter((row) => !there.has(row.dataset.row));
  list.tBodies[0]?.append(...more.map(imported));
  document.dispatchEvent(new Event("rows"));
  return there.size + more.length;
}
