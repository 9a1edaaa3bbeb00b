"""Reports: runs read from disk, compared, and shown as one page with tables and curves."""
