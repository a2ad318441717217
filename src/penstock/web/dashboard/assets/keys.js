// The keyboard: / searches, g and a letter opens a page, j and k move in a table, Enter opens, Escape closes,
// ? lists them.
import { closest, find, isTyping, openMenus } from "./elements.js";

let prefix = 0;

/** @param {number} by */
function move(by) {
  const rows = [...document.querySelectorAll("main tbody tr")];
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.classList.contains("at"));
  rows[at]?.classList.remove("at");
  const now = at >= 0 ? at : rows.findIndex((row) => row.contains(document.activeElement));
  const row = rows[Math.min(rows.length - 1, Math.max(0, now + by))];
  row?.classList.add("at");
  row?.scrollIntoView({ block: "nearest" });
  row?.querySelector("a")?.focus({ preventScroll: true });
}

export function startKeys() {
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
