// Says what was done, for some seconds, with an undo where there is one. The key u undoes.
import { findAll, isTyping } from "./elements.js";
import { fetchPage } from "./fetch_page.js";
import { updateRows } from "./list.js";

const SHOWN = 10000;
/** The server keeps an undo for a minute. */
const UNDO = 55000;

export function startToasts() {
  document.addEventListener("keydown", (event) => {
    if (event.key !== "u" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (isTyping(event)) return;
    findAll(HTMLButtonElement, "button.undo").at(-1)?.click();
  });
  const undo = document.querySelector("main .flash form");
  if (undo) setTimeout(() => undo.remove(), UNDO);
}

/** @param {Element | string} said  a message of the server, or a text  @param {boolean} failed */
export function toast(said, failed = false) {
  const box = place();
  const made = typeof said === "string" ? document.createElement("div") : document.importNode(said, true);
  if (typeof said === "string") {
    made.className = `flash ${failed ? "failed" : "done"}`;
    made.textContent = said;
  }
  made.removeAttribute("role"); // the place of toasts is the live region
  box.replaceChildren(made);
  made.querySelector("form")?.addEventListener("submit", undo);
  const close = () => {
    if (made.matches(":hover, :focus-within")) setTimeout(close, 2000);
    else made.remove();
  };
  setTimeout(close, SHOWN);
}

/** @param {SubmitEvent} event */
async function undo(event) {
  event.preventDefault();
  const form = event.target;
  if (!(form instanceof HTMLFormElement)) return;
  for (const button of form.querySelectorAll("button")) button.disabled = true;
  const fields = [...new FormData(form)].map(([name, value]) => [name, String(value)]);
  const answer = await fetchPage(form.action, new URLSearchParams(fields));
  if (!answer) return toast("No answer: it may not have been undone.", true);
  updateRows(answer);
  toast(answer.querySelector(".flash") ?? "Undone.");
}

function place() {
  let box = document.getElementById("toasts");
  if (!box) {
    box = document.createElement("div");
    box.id = "toasts";
    box.setAttribute("role", "status");
    document.body.append(box);
  }
  return box;
}
