// Compares parts of a page with what the server sends, apart from what changes by itself.

/** What the server sent for a part that has been replaced. @type {WeakMap<Element, string>} */
export const sent = new WeakMap();

/** A part as text, without relative times, open details, and the classes that scripts give to it. @param {Element} part */
export function facts(part) {
  const copy = part.ownerDocument.importNode(part, true); // unlike cloneNode() it keeps the type
  for (const one of copy.querySelectorAll("time")) {
    one.textContent = "";
    one.removeAttribute("title");
    one.removeAttribute("data-local");
  }
  for (const one of copy.querySelectorAll("details")) one.removeAttribute("open");
  for (const one of copy.querySelectorAll("[data-live]")) one.replaceChildren(); // they are compared by themselves
  copy.removeAttribute("class");
  return copy.outerHTML;
}

/** Whether a part is what the server sends now. @param {Element} old  @param {Element} now */
export function isSame(old, now) {
  return (sent.get(old) ?? facts(old)) === facts(now);
}
