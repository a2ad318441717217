// What pages can do besides: everything works without this script.
import { startCopy } from "./copy.js";
import { startKeys } from "./keys.js";
import { startList } from "./list.js";
import { startLive } from "./live.js";
import { startPicking } from "./picking.js";
import { startScan } from "./scan.js";
import { startSticky } from "./sticky.js";
import { startTimes } from "./times.js";
import { startToasts } from "./toast.js";

const root = document.documentElement;

/** Change the colours at once; the form does the same without script. */
function startTheme() {
  const form = document.querySelector("form.theme");
  const select = form?.querySelector("select");
  if (!form || !select) return;
  select.addEventListener("change", () => {
    root.dataset.theme = select.value;
    const path = `${root.dataset.base}` || "/";
    document.cookie = `penstock-theme=${select.value}; path=${path}; max-age=31536000; samesite=lax`;
  });
}

/** A click anywhere in a row opens its link, unless text is selected. */
function startRows() {
  document.addEventListener("click", (event) => {
    const row = event.target.closest?.("tr[data-href]");
    if (!row || event.target.closest("a, button, input, label") || String(getSelection())) return;
    if (event.ctrlKey || event.metaKey) window.open(row.dataset.href, "_blank", "noopener");
    else location.assign(row.dataset.href);
  });
}

/** Forms leave fields that are empty out of the address, so that links stay short. */
function startForms() {
  for (const form of document.querySelectorAll("form.filters, form.filter")) {
    form.addEventListener("formdata", ({ formData }) => {
      for (const [name, value] of [...formData]) {
        if (!value || (name === "order" && value === "newest")) formData.delete(name);
      }
      const boxes = [...form.querySelectorAll('input[name="column"]')];
      if (boxes.every((box) => box.checked === "usual" in box.dataset)) formData.delete("column");
    });
    form.addEventListener("change", (event) => {
      if (event.target.matches("select")) form.requestSubmit();
    });
  }
  document.addEventListener("click", (event) => {
    for (const open of document.querySelectorAll("details.sure[open], details.columns[open]")) {
      if (!open.contains(event.target)) open.open = false;
    }
  });
}

startTheme();
startCopy();
startRows();
startForms();
startKeys();
startTimes();
startList();
startPicking();
startScan();
startSticky();
startToasts();
startLive();
