"""The page: plain files that a browser loads as they are. They hold no data."""
