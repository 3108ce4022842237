"""From a job to a request: fetch and check media, render the template, tokenise. No MLX work."""
