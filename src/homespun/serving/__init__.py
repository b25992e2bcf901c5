"""HTTP server for models: batching of requests, endpoints, limits."""
