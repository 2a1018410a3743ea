"""Explanations for people: words, pictures, pages, and what attention does over a whole graph."""
