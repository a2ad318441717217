// The keyboard: / searches, g and a letter opens a page, j and k move in a table, Enter opens, Escape closes,
// ? lists them.
import { closest, find, findAll, isTyping, openMenus } from "./elements.js";

let prefix = 0;
const tableRows = () => findAll(HTMLTableRowElement, "main tbody tr");

/** @param {number} by */
function move(by) {
  const rows = tableRows();
  const at = rows.findIndex((row) => row.classList.contains("at"));
  rows[at]?.classList.remove("at");
  const now = at >= 0 ? at : rows.findIndex((row) => row.contains(document.activeElement));
  enter(rows, Math.min(rows.length - 1, Math.max(0, now + by)));
}

/** @param {HTMLTableRowElement[]} rows  @param {number} n */
function enter(rows, n) {
  const row = rows[n];
  if (!row) return;
  row.classList.add("at");
  row.scrollIntoView({ block: "nearest" });
  row.querySelector("a")?.focus({ preventScroll: true });
  history.replaceState({ at: n, row: row.dataset.row }, ""); // somebody comes back to it from the page of the row
}

/** The row at which somebody was who comes back; if it has left the list, the one in its place. */
function comeBack() {
  const [load] = performance.getEntriesByType("navigation");
  if (!(load instanceof PerformanceNavigationTiming) || load.type !== "back_forward" || !history.state) return;
  const rows = tableRows();
  const { at, row } = history.state;
  const same = row ? rows.findIndex((one) => one.dataset.row === row) : -1;
  enter(rows, same >= 0 ? same : Math.min(rows.length - 1, Number(at)));
}

export function startKeys() {
  comeBack();
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      closest(HTMLElement, "input, select, textarea", event)?.blur();
      for (const open of openMenus()) open.open = false;
      return;
    }
    if (isTyping(event)) return;
    const page = find(HTMLElement, `.side nav [data-key="${CSS.escape(event.key)}"]`);
    if (event.key === "/") {
      event.preventDefault();
      document.getElementById("q")?.focus();
    } else if (event.key === "?") {
      document.getElementById("keys")?.togglePopover?.();
    } else if (event.key === "g") {
      prefix = Date.now();
    } else if (page && Date.now() - prefix < 1200) {
      page.click();
      prefix = 0;
    } else if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "n") find(HTMLElement, 'main [data-key="n"]')?.click();
  });
}
