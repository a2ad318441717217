"""The app, and nothing else: modules of tasks import it, and it names them."""

from penstock import App

# The store is PENSTOCK_URL, else `url` in penstock.toml.
app = App(include=["newsletter.tasks"])
