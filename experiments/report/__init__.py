"""Reports: runs beside the paper's numbers, as a page, as Markdown and as small files to keep."""
