// Jobs are selected by boxes, by x, and with Shift from one to another; acts that can be undone are done at once.
import { fetchPage } from "./fetch_page.js";
import { sent } from "./compare.js";
import { copyText } from "./copy.js";
import { closest, find, findAll, isTyping } from "./elements.js";
import { updateRows } from "./list.js";
import { toast } from "./toast.js";

/** Acts that are done at once: in which state they leave a job, and the states of jobs that can be given back. @type {Record<string, [string, string[]]>} */
const DIRECT = {
  retry: ["available", ["dead", "cancelled"]],
  "run-now": ["available", ["scheduled", "retryable"]],
};

/** @type {HTMLInputElement | null} */
let last = null;
/** Whether an act is on its way: the second of two clicks would be one on all jobs of the list. */
let busy = false;
const form = () => find(HTMLFormElement, "#picked");
const boxes = () => findAll(HTMLInputElement, "#jobs td.pick input");
const picked = () => boxes().filter((box) => box.checked);

export function startPicking() {
  if (!document.querySelector("form.filters")) return;
  document.addEventListener("click", (event) => {
    const box = closest(HTMLInputElement, "#jobs .pick input", event);
    if (!box) return;
    if (box.classList.contains("all")) for (const one of boxes()) one.checked = box.checked;
    else pick(box, event.shiftKey);
    show();
  });
  document.addEventListener("keydown", onKey);
  document.addEventListener("submit", onSubmit);
  document.addEventListener("rows", show);
  document.addEventListener("click", (event) => {
    if (closest(Element, "[data-pick-none]", event)) none();
    if (!closest(Element, "[data-copy-picked]", event)) return;
    copyText(picked().map((box) => box.value).join("\n")).then((done) => toast(done ? "Copied." : "The browser does not let this page copy."));
  });
  show();
}

/** A box was changed; with Shift, all from the last one to it follow. @param {HTMLInputElement} box  @param {boolean} range */
function pick(box, range) {
  const all = boxes();
  const [from, to] = [last ? all.indexOf(last) : -1, all.indexOf(box)];
  if (range && from >= 0) {
    for (const one of all.slice(Math.min(from, to), Math.max(from, to) + 1)) one.checked = box.checked;
    getSelection()?.removeAllRanges();
  }
  last = box;
}

function none() {
  for (const box of picked()) box.checked = false;
  show();
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (isTyping(event)) return;
  if (event.key === "Escape") {
    document.querySelector("tr.at")?.classList.remove("at");
    return none();
  }
  if (event.key.toLowerCase() !== "x") return;
  const box = find(HTMLInputElement, "tr.at td.pick input");
  if (!box) return;
  box.checked = event.shiftKey || !box.checked;
  pick(box, event.shiftKey);
  show();
}

/** The bar says whom an act changes. */
function show() {
  const bar = form();
  if (!bar) return;
  const [n, all] = [picked().length, boxes().length];
  const which = find(HTMLElement, ".which", bar);
  if (which) which.textContent = n ? `${n} selected` : (which.dataset.all ?? "");
  bar.classList.toggle("some", n > 0);
  for (const one of findAll(HTMLElement, "[data-copy-picked], [data-pick-none]", bar)) one.hidden = !n;
  const head = find(HTMLInputElement, "#jobs .all");
  if (!head) return;
  head.hidden = false;
  head.checked = n > 0 && n === all;
  head.indeterminate = n > 0 && n < all;
}

/** Acts on selected jobs that take nothing away are done at once; others lead to a page that asks. @param {SubmitEvent} event */
async function onSubmit(event) {
  const bar = form();
  if (!bar || event.target !== bar) return;
  if (busy) return event.preventDefault();
  const act = event.submitter instanceof HTMLButtonElement ? event.submitter.value : "";
  const rows = picked().map((box) => box.closest("tr")).filter((row) => row !== null);
  const [state, from] = DIRECT[act] ?? ["", []];
  if (!rows.length || !rows.every((row) => from.includes(row.dataset.state ?? ""))) return;
  event.preventDefault();
  const fields = new URLSearchParams(picked().map((box) => ["job", box.value]));
  fields.set("act", act);
  fields.set("back", bar.dataset.back ?? "");
  fields.set("form_token", find(HTMLInputElement, "input[name=form_token]")?.value ?? "");
  const before = rows.map((row) => showState(row, state));
  none();
  busy = true;
  const answer = await fetchPage(bar.action, fields);
  busy = false;
  rows.forEach((row, n) => {
    row.classList.remove("busy");
    if (!answer) row.querySelector(".is")?.replaceChildren(...(before[n] ?? []));
    sent.delete(row); // it is not as the server sent it
  });
  if (!answer) return toast("No answer: nothing may have been changed.", true);
  updateRows(answer);
  toast(answer.querySelector(".flash") ?? "Done.");
}

/** Show the state that a job is about to have; returns what was shown. @param {Element} row  @param {string} state */
function showState(row, state) {
  const cell = row.querySelector(".is");
  const was = [...(cell?.childNodes ?? [])];
  const shown = document.createElement("span");
  shown.className = `state s-${state}`;
  shown.textContent = state;
  cell?.replaceChildren(shown);
  row.classList.add("busy");
  return was;
}
