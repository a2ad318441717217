"""What every test may use. A fixture that only one folder needs lives in that folder."""
