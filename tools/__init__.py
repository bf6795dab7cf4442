"""Programs for users: `report`, `suite`, `watch` and `curves`, each run as `python -m tools.NAME`."""
