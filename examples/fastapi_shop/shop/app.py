"""The app, and nothing else: modules of tasks import it, and it names them."""

from penstock import App, QueueDefaults

# The store is PENSTOCK_URL, else `url` in penstock.toml: SQLite or Redis, without a change of code.
app = App(
    include=["shop.orders", "shop.mail", "shop.reports", "shop.cleanup", "shop.alerts"],
    # what the mail provider allows, over all workers; `penstock queues set` changes it at run time
    queues={"mail": QueueDefaults(rate="100/s", burst=10)},
)
