"""Makes, shows, checks and splits .epsd files, the training data of EPS (docs/formats/data.md)."""
