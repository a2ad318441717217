// A search that the server has answered in part goes on by itself, with its progress and a button that stops it.
import { find } from "./elements.js";
import { fetchPage } from "./fetch_page.js";
import { appendRows } from "./list.js";

/** The search stops after this many rows until somebody wants more. */
const ENOUGH = 100;

export function startScan() {
  const line = document.getElementById("scan");
  const link = find(HTMLAnchorElement, "#scan a[rel=next]");
  const text = line?.querySelector("span");
  if (!line || !link || !text) return;
  const stop = document.createElement("button");
  stop.type = "button";
  stop.textContent = "Stop";
  link.before(stop);
  const scan = new Scan(line, link, stop, text);
  stop.addEventListener("click", () => scan.stop());
  link.addEventListener("click", (event) => {
    event.preventDefault();
    scan.run(scan.rows + ENOUGH);
  });
  document.addEventListener("keydown", (event) => event.key === "Escape" && scan.stop());
  scan.run(ENOUGH);
}

class Scan {
  /**
   * @param {HTMLElement} line  @param {HTMLAnchorElement} link  of the next page
   * @param {HTMLButtonElement} stop  @param {HTMLElement} text
   */
  constructor(line, link, stop, text) {
    this.line = line;
    this.link = link;
    this.button = stop;
    this.text = text;
    this.next = link.getAttribute("href") ?? "";
    this.counts = line.dataset.scan === "count";
    this.rows = document.querySelectorAll("#jobs tr[data-row]").length;
    this.running = false;
  }

  /** Search on, up to this many rows. @param {number} most */
  async run(most) {
    if (this.running) return;
    this.running = true;
    this.show();
    while (this.running && this.next && (this.counts || this.rows < most)) {
      if (document.hidden) await new Promise((go) => document.addEventListener("visibilitychange", go, { once: true }));
      const began = performance.now();
      const page = await fetchPage(this.next);
      if (!page || page.querySelector("main .failed")) {
        this.text.textContent = "The search got no answer. ";
        break;
      }
      this.take(page);
      // as long as it took: the store has other things to do
      await new Promise((go) => setTimeout(go, Math.min(2000, performance.now() - began)));
    }
    this.running = false;
    this.show();
  }

  stop() {
    this.running = false;
  }

  /** @param {Document} page */
  take(page) {
    const line = page.getElementById("scan");
    const link = page.querySelector("#scan a[rel=next], .pages a[rel=next]");
    this.next = link?.getAttribute("href") ?? "";
    if (this.next) this.link.setAttribute("href", this.next);
    const seen = Number(line?.dataset.seen ?? new URLSearchParams(this.next.split("?")[1]).get("seen") ?? 0);
    const total = Number(this.line.dataset.total);
    if (this.counts) this.count(page);
    else this.rows = appendRows(page);
    const verb = this.counts ? "Counted in" : "Searched";
    const found = this.counts ? "" : `: ${this.rows.toLocaleString("en")} found`;
    const of = this.next ? `${seen.toLocaleString("en")} of about ${Math.max(seen, total).toLocaleString("en")}` : "all";
    this.text.textContent = `${verb} ${of} jobs${found}.`;
  }

  /** @param {Document} page */
  count(page) {
    const now = page.getElementById("count");
    const shown = document.getElementById("count");
    if (!now || !shown) return;
    shown.textContent = now.textContent;
    const inside = document.querySelector("[data-count-in]");
    if (inside && !this.next) inside.textContent = `${now.textContent} jobs`;
  }

  show() {
    this.button.hidden = !this.running;
    this.link.hidden = this.running || !this.next;
    this.line.classList.toggle("running", this.running);
  }
}
