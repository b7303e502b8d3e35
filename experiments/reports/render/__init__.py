"""Reports as Markdown and as a page."""
