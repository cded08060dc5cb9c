"""OpenAI's API over HTTP: routes, schema, keys, streams, and the server around them."""
