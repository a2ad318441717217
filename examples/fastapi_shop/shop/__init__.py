"""A web shop with background jobs: FastAPI, SQLAlchemy and Penstock."""
