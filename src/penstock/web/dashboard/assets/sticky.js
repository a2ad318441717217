// The time range that was chosen last stays for the other pages of this tab: their links in the navigation have it.
import { find, findAll } from "./elements.js";

const KEYS = { since: "penstock-since", range: "penstock-range" };

export function startSticky() {
  const query = new URLSearchParams(location.search);
  const form = find(HTMLFormElement, "form.filters");
  const [since, range] = [query.get("since") ?? "", query.get("range")];
  if (/^\d+[smhd]$/.test(since)) sessionStorage.setItem(KEYS.since, since);
  if (range) sessionStorage.setItem(KEYS.range, range);
  form?.addEventListener("formdata", (event) => {
    if (!event.formData.get("since")) sessionStorage.removeItem(KEYS.since);
  });
  form?.querySelector("a.button")?.addEventListener("click", () => sessionStorage.removeItem(KEYS.since));
  for (const link of findAll(HTMLAnchorElement, ".side nav a")) {
    const name = link.pathname.endsWith("/jobs") ? "since" : "range";
    const value = sessionStorage.getItem(KEYS[name]);
    if (value) link.search = new URLSearchParams({ [name]: value }).toString();
  }
}
