// Finds elements by selector and class, so that code and type checker agree on what an element is.

/**
 * The first element that matches, if it is of this class.
 * @template {Element} T
 * @param {new () => T} kind  @param {string} selector  @param {ParentNode} within
 * @returns {T | null}
 */
export function find(kind, selector, within = document) {
  const found = within.querySelector(selector);
  return found instanceof kind ? found : null;
}

/**
 * All elements that match and are of this class.
 * @template {Element} T
 * @param {new () => T} kind  @param {string} selector  @param {ParentNode} within
 * @returns {T[]}
 */
export function findAll(kind, selector, within = document) {
  return [...within.querySelectorAll(selector)].flatMap((one) => (one instanceof kind ? one : []));
}

/**
 * The element that matches among the target of an event and those around it.
 * @template {Element} T
 * @param {new () => T} kind  @param {string} selector  @param {Event} event
 * @returns {T | null}
 */
export function closest(kind, selector, event) {
  const found = event.target instanceof Element ? event.target.closest(selector) : null;
  return found instanceof kind ? found : null;
}

/** Whether a key is typed into a field. A box is none. @param {KeyboardEvent} event */
export const isTyping = (event) => closest(HTMLElement, "select, textarea, input:not([type=checkbox])", event) !== null;

/** Menus and questions that are open. */
export const openMenus = () => findAll(HTMLDetailsElement, "details.sure[open], details.columns[open]");
