"""The dashboard: server-rendered pages that show the inspector's answers and nothing else.

| module | contents |
|---|---|
| `dashboard.py` | the ASGI application: routes, login, answers |
| `settings.py` | what a dashboard allows and shows |
| `identification.py` | who asks, and with which rights |
| `server.py`, `bounded_connection.py` | the dashboard on sockets of its own |
| `security.py`, `forms.py` | headers, where a request comes from, the token of each form |
| `view.py` | one request: what pages use to read, link and change; cards, which fail alone; what a page is |
| `pages/` | the pages: a list and one of its things are one module |
| `pulse.py`, `shared_reads.py` | one read of the store for all open pages; long searches; its clock |
| `rendering.py`, `templates/` | Jinja templates; `parts.html` has the macros of the design |
| `assets/` | style sheet and scripts, without a build step; `make types` checks their JSDoc |
| `rows.py` | rows of tables that several pages have |
| `job_filters.py` | filters of jobs as addresses, and names for them |
| `background.py`, `undo_tickets.py` | what runs beside the pages; what can be undone for a minute |
| `charts.py`, `json_tree.py`, `formats.py` | what a page draws |

To add a page:

1. Write `pages/NAME.py` with `async def show(view)`, which returns the values of the template, and
   `PAGE = DashboardPage(name="NAME", path="/NAME", title=…, show=show, navigation=…)`.
2. Write `templates/pages/NAME.html`, which extends `layout.html`, imports `parts.html` as `ui` with context,
   and has a block `content`. Read parts that may fail by `view.card(key, read)`, and show them with
   `ui.card`. An element with an id and `data-live` is replaced when the page refreshes itself: put an element
   that may be missing into one that is always there.
3. Changes are `DashboardAct(path=…, do=…, act=…)`: a form with `ui.act_form` that is sent there. `do`
   writes the audit log with `view.audit` and returns `view.done(text, path)`, with `undo=` the path of the
   act that takes it back.
4. Add both to the table in `pages/__init__.py`. Rights, tokens of forms, headers, errors and login are then
   checked for them as for all pages, and `tests/web/dashboard/` opens each page of the table.
"""

from penstock.core.installation import DASHBOARD, require_extra

require_extra("web", DASHBOARD, "the dashboard")

from penstock.web.dashboard.dashboard import Dashboard  # noqa: E402  # its imports need the extra
from penstock.web.dashboard.identification import Visitor  # noqa: E402
from penstock.web.dashboard.settings import DashboardSettings  # noqa: E402

__all__ = ["Dashboard", "DashboardSettings", "Visitor"]
