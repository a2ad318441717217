// Copies ids and links. Over plain http there is no clipboard, so a selection is copied.
import { findAll } from "./elements.js";

/** @param {string} text @returns {Promise<boolean>} */
export async function copyText(text) {
  if (navigator.clipboard) {
    const done = await navigator.clipboard.writeText(text).then(() => true, () => false);
    if (done) return true;
  }
  const focused = document.activeElement;
  const area = document.createElement("textarea");
  area.value = text;
  area.readOnly = true;
  area.className = "hidden";
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (focused instanceof HTMLElement) focused.focus({ preventScroll: true });
  return done;
}

export function startCopy() {
  for (const button of findAll(HTMLButtonElement, "button.copy")) {
    button.hidden = false;
    const label = button.textContent;
    button.addEventListener("click", async () => {
      const done = await copyText("copyLink" in button.dataset ? location.href : (button.dataset.copy ?? ""));
      if (!done && button.previousElementSibling) getSelection()?.selectAllChildren(button.previousElementSibling);
      button.textContent = done ? "Copied" : "Press Ctrl+C";
      setTimeout(() => (button.textContent = label), 2000);
    });
  }
}
