"""Those who keep the jobs: one package or module per store, each behind the seam of `penstock.store`."""
