// What pages can do besides: everything works without this script.
import { startCopy } from "./copy.js";
import { closest, findAll, openMenus } from "./elements.js";
import { startFlows } from "./flows.js";
import { startKeys } from "./keys.js";
import { startList } from "./list.js";
import { startLive } from "./live.js";
import { startOnce } from "./once.js";
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
    const href = closest(HTMLTableRowElement, "tr[data-href]", event)?.dataset.href;
    if (!href || closest(Element, "a, button, input, label", event) || String(getSelection())) return;
    if (event.ctrlKey || event.metaKey) window.open(href, "_blank", "noopener");
    else location.assign(href);
  });
}

/** Forms leave fields that are empty out of the address, so that links stay short. */
function startForms() {
  for (const form of findAll(HTMLFormElement, "form.filters, form.filter")) {
    form.addEventListener("formdata", ({ formData }) => {
      for (const [name, value] of [...formData]) {
        if (!value || (name === "order" && value === "newest")) formData.delete(name);
      }
      const boxes = findAll(HTMLInputElement, 'input[name="column"]', form);
      if (boxes.every((box) => box.checked === "usual" in box.dataset)) formData.delete("column");
    });
    form.addEventListener("change", (event) => {
      if (event.target instanceof HTMLSelectElement) form.requestSubmit();
    });
  }
  document.addEventListener("click", (event) => {
    for (const open of openMenus()) {
      if (event.target instanceof Node && !open.contains(event.target)) open.open = false;
    }
  });
}

startTheme();
startCopy();
startRows();
startForms();
startKeys();
startTimes();
startFlows();
startList();
startPicking();
startScan();
startSticky();
startToasts();
startOnce();
startLive();
