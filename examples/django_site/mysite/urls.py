from django.contrib import admin
from django.urls import path

from newsletter import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("subscribers", views.subscribe),
    path("jobs/<str:id>", views.show_job),
    path("healthz", views.health),
]
