// Jobs are selected by boxes, by x, and with Shift from one to another; acts that can be undone are done at once.
import { fetchPage } from "./fetch_page.js";
import { sent } from "./compare.js";
import { copyText } from "./copy.js";
import { updateRows } from "./list.js";
import { toast } from "./toast.js";

/** In which state an act leaves a job that can be given back, and the states of such jobs. */
const DIRECT = {
  retry: ["available", ["dead", "cancelled"]],
  "run-now": ["available", ["scheduled", "retryable"]],
  cancel: ["cancelled", ["available"]],
  discard: ["dead", ["available"]],
};

/** @type {HTMLInputElement | null} */
let last = null;
const form = () => /** @type {HTMLFormElement | null} */ (document.getElementById("picked"));
/** @returns {HTMLInputElement[]} */
const boxes = () => [...document.querySelectorAll("#jobs td.pick input")];
const picked = () => boxes().filter((box) => box.checked);

export function startPicking() {
  if (!document.querySelector("form.filters")) return;
  document.addEventListener("click", (event) => {
    const box = event.target.closest?.("#jobs .pick input");
    if (!box) return;
    if (box.classList.contains("all")) for (const one of boxes()) one.checked = box.checked;
    else pick(box, event.shiftKey);
    show();
  });
  document.addEventListener("keydown", onKey);
  document.addEventListener("submit", onSubmit);
  document.addEventListener("rows", show);
  document.addEventListener("click", (event) => {
    if (event.target.closest?.("[data-pick-none]")) none();
    const copy = event.target.closest?.("[data-copy-picked]");
    if (copy) copyText(picked().map((box) => box.value).join("\n")).then((done) => toast(done ? "Copied." : "The browser does not let this page copy."));
  });
  show();
}

/** A box was changed; with Shift, all from the last one to it follow. */
function pick(box, range) {
  const all = boxes();
  const [from, to] = [all.indexOf(last), all.indexOf(box)];
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
  if (event.target.closest?.("select, textarea, input:not([type=checkbox])")) return;
  if (event.key === "Escape") {
    document.querySelector("tr.at")?.classList.remove("at");
    return none();
  }
  if (event.key.toLowerCase() !== "x") return;
  const box = document.querySelector("tr.at td.pick input");
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
  const which = bar.querySelector(".which");
  which.textContent = n ? `${n} selected` : which.dataset.all;
  bar.classList.toggle("some", n > 0);
  for (const one of bar.querySelectorAll("[data-copy-picked], [data-pick-none]")) one.hidden = !n;
  const head = document.querySelector("#jobs .all");
  if (!head) return;
  head.hidden = false;
  head.checked = n > 0 && n === all;
  head.indeterminate = n > 0 && n < all;
}

/** Acts on selected jobs that can all be undone are done at once; others lead to a page that asks. */
async function onSubmit(event) {
  const bar = form();
  if (event.target !== bar) return;
  const act = event.submitter?.value;
  const rows = picked().map((box) => box.closest("tr"));
  const [state, from] = DIRECT[act] ?? ["", []];
  if (!rows.length || !rows.every((row) => from.includes(row.dataset.state))) return;
  event.preventDefault();
  const fields = new URLSearchParams(picked().map((box) => ["job", box.value]));
  fields.set("act", act);
  fields.set("back", bar.dataset.back);
  fields.set("form_token", document.querySelector("input[name=form_token]").value);
  const before = rows.map((row) => showState(row, state));
  none();
  const answer = await fetchPage(bar.action, fields);
  rows.forEach((row, n) => {
    row.classList.remove("busy");
    if (!answer) row.querySelector(".is")?.replaceChildren(...before[n]);
    sent.delete(row); // it is not as the server sent it
  });
  if (!answer) return toast("No answer: nothing may have been changed.", true);
  updateRows(answer);
  toast(answer.querySelector(".flash") ?? "Done.");
}

/** Show the state that a job is about to have; returns what was shown. */
function showState(row, state) {
  const cell = row.querySelector(".is");
  const was = [...cell.childNodes];
  const shown = document.createElement("span");
  shown.className = `state s-${state}`;
  shown.textContent = state;
  cell.replaceChildren(shown);
  row.classList.add("busy");
  return was;
}
