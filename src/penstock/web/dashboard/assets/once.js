// A form that is on its way is not sent again: a second click would do its act twice.

/** A form without an answer for this long (ms) may be sent again. */
const PATIENCE = 15000;
/** When a form was sent. @type {WeakMap<HTMLFormElement, number>} */
let sentAt = new WeakMap();

export function startOnce() {
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!(form instanceof HTMLFormElement) || form.getAttribute("method") !== "post" || event.defaultPrevented) return;
    if (Date.now() - (sentAt.get(form) ?? 0) < PATIENCE) event.preventDefault();
    else sentAt.set(form, Date.now());
  });
  addEventListener("pageshow", () => (sentAt = new WeakMap())); // somebody came back to the page
}
