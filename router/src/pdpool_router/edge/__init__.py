"""The client's side: HTTP/1.1, routes, errors, the admin port."""
