// The time range that was chosen last stays for the other pages of this tab: their links in the navigation have it.
const KEYS = { since: "penstock-since", range: "penstock-range" };

export function startSticky() {
  const query = new URLSearchParams(location.search);
  const form = document.querySelector("form.filters");
  if (/^\d+[smhd]$/.test(query.get("since") ?? "")) sessionStorage.setItem(KEYS.since, query.get("since"));
  if (query.get("range")) sessionStorage.setItem(KEYS.range, query.get("range"));
  form?.addEventListener("formdata", (event) => {
    if (!event.formData.get("since")) sessionStorage.removeItem(KEYS.since);
  });
  form?.querySelector("a.button")?.addEventListener("click", () => sessionStorage.removeItem(KEYS.since));
  for (const link of document.querySelectorAll(".side nav a")) {
    const name = link.pathname.endsWith("/jobs") ? "since" : "range";
    const value = sessionStorage.getItem(KEYS[name]);
    if (value) link.search = new URLSearchParams({ [name]: value }).toString();
  }
}
