// Says which parts of a page somebody fills in, selects or points at: these are not replaced meanwhile.
import { findAll } from "./elements.js";

/** A pointer that has rested for this long (ms) holds nothing back; on a phone that is a finger's last place. */
const RESTS = 5000;
let moved = 0;

export function startUse() {
  for (const kind of ["pointermove", "pointerdown", "wheel", "keydown"]) {
    addEventListener(kind, () => (moved = Date.now()), { passive: true });
  }
}

/** @param {Element} part */
export function isInUse(part) {
  const active = document.activeElement;
  if (active?.closest("form") && part.contains(active)) return true;
  if (part.querySelector("details.sure[open], details.columns[open]") || isFilledIn(part)) return true;
  if (isPointedAt(part)) return true;
  const selection = getSelection();
  return Boolean(selection && !selection.isCollapsed && part.contains(selection.anchorNode));
}

/** Whether a field has another value than the one that the server sent. @param {Element} part */
function isFilledIn(part) {
  return (
    findAll(HTMLInputElement, "input", part).some((one) => one.value !== one.defaultValue || one.checked !== one.defaultChecked) ||
    findAll(HTMLTextAreaElement, "textarea", part).some((one) => one.value !== one.defaultValue) ||
    findAll(HTMLSelectElement, "select", part).some((one) => one.selectedIndex !== sentIndex(one))
  );
}

/** @param {HTMLSelectElement} select */
function sentIndex(select) {
  return Math.max(0, [...select.options].map((one) => one.defaultSelected).lastIndexOf(true));
}

/** Rows that move under a pointer lead to wrong clicks. @param {Element} part */
function isPointedAt(part) {
  return Date.now() - moved < RESTS && part.matches(":hover") && part.matches(".card:not(#why):not(#progress), .parts, table");
}
