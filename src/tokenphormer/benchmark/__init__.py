"""The same splits, stopping rule and search budget for every method: runs as rows, tables from rows."""
