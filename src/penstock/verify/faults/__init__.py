"""The harm that a run can do: its types, when which is done, and who does it."""
