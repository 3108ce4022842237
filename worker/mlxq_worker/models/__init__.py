"""Model families: loading, and one adapter for each way in which families differ."""
