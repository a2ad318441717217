"""Django's settings. Those of Penstock are in penstock.toml and in PENSTOCK_… variables."""

import os

SECRET_KEY = os.environ.get("SECRET_KEY", "only for development")
DEBUG = "DEBUG" in os.environ
ALLOWED_HOSTS = ["*"]
USE_TZ = True
ROOT_URLCONF = "mysite.urls"
WSGI_APPLICATION = "mysite.wsgi.application"
INSTALLED_APPS = ["newsletter"]
MIDDLEWARE = ["django.middleware.common.CommonMiddleware"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DATABASE", "site.db"),
        # SQLite has one writer at a time: a transaction waits for its turn when it begins
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 30},
    }
}
