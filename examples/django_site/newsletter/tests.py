"""The site's jobs in virtual time: `python manage.py test`."""

from datetime import timedelta
from io import StringIO

from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import transaction
from django.test import TransactionTestCase  # jobs run in threads, and see what is committed
from django.utils import timezone
from penstock.testing import FaultyStore, inline
from starlette.testclient import TestClient

from mysite.asgi import application
from mysite.jobs import app
from newsletter.models import Letter, Subscriber
from newsletter.tasks import welcome


class Newsletter(TransactionTestCase):
    def setUp(self) -> None:
        self.box = self.enterContext(inline(app))

    def test_a_subscriber_is_welcomed(self) -> None:
        answer = self.client.post("/subscribers", {"email": "ann@example.org"}, "application/json").json()
        self.box.assert_enqueued(welcome, answer["subscriber"])
        self.assertFalse(Letter.objects.exists())
        self.box.run()
        self.assertEqual([letter.text for letter in Letter.objects.all()], ["Welcome!"])
        self.assertIsNotNone(Subscriber.objects.get().welcomed_at)
        self.assertEqual(self.client.get(f"/jobs/{answer['job']}").json()["state"], "completed")

    def test_a_rollback_enqueues_nothing(self) -> None:
        with self.assertRaises(OSError), transaction.atomic():
            self.client.post("/subscribers", {"email": "ann@example.org"}, "application/json")
            raise OSError
        self.box.assert_not_enqueued(welcome)

    def test_a_newsletter_goes_to_everybody(self) -> None:
        for name in ("ann", "bob"):
            Subscriber.objects.create(email=f"{name}@example.org")
        said = StringIO()
        call_command("send_newsletter", "News!", stdout=said)
        self.assertEqual(said.getvalue(), "2 letters enqueued\n")
        self.box.run()
        self.assertEqual(Letter.objects.filter(text="News!").count(), 2)

    def test_a_subscriber_is_accepted_while_the_store_is_away(self) -> None:
        store = FaultyStore(app.store)
        own = app.use_store(store.store)
        store.down()
        with self.assertLogs("django.db.backends.base", "ERROR"):
            answer = self.client.post("/subscribers", {"email": "ann@example.org"}, "application/json")
        self.assertEqual(answer.status_code, 201)
        app.use_store(own)
        Subscriber.objects.update(created_at=timezone.now() - timedelta(minutes=5))
        self.box.advance("1m")
        self.assertIsNotNone(Subscriber.objects.get().welcomed_at)

    def test_an_unknown_job_is_not_found(self) -> None:
        self.assertEqual(self.client.get("/jobs/nothing").status_code, 404)

    def test_staff_see_the_dashboard_with_djangos_login(self) -> None:
        job = self.client.post("/subscribers", {"email": "ann@example.org"}, "application/json").json()["job"]
        site = TestClient(application, follow_redirects=False)
        asked = site.get("/dashboard/jobs?state=dead")
        self.assertEqual(asked.headers["location"], "/admin/login/?next=%2Fdashboard%2Fjobs%3Fstate%3Ddead")
        self.assertTrue(site.get("/dashboard").headers["location"].endswith("/dashboard/"))
        page = f"/dashboard/jobs/mail/{job}"
        for name, facts, status, may_act in (
            ("guest", {}, 403, False),
            ("bob", {"is_staff": True}, 200, False),
            ("ann", {"is_staff": True, "is_superuser": True}, 200, True),
        ):
            self.client.force_login(User.objects.create(username=name, **facts))
            site.cookies.set("sessionid", self.client.cookies["sessionid"].value)
            answer = site.get(page)
            self.assertEqual((answer.status_code, f"{page}/act/" in answer.text), (status, may_act), name)
